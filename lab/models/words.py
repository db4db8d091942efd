"""The words of the corpus: enough that a guess among them is seldom right, few enough to be a token each."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NOUNS = _words(
    "anchor apple arrow barn basket beach bell bench bird boat book bottle branch bread bridge brush bucket "
    "button cabin candle canoe carpet castle chair chalk cheese circle clock cloud coat coin compass copper "
    "corner cotton crayon cup curtain desk diamond dolphin door dragon drum eagle engine falcon farm feather "
    "fence field finger fire flag flower forest fountain fox frog garden gate ghost glass glove goat grain "
    "hammer harbor hat hill honey horse house island jacket jar key kite kitten ladder lake lamp leaf lemon "
    "letter library lion magnet map market meadow melon mirror monkey moon mountain needle nest ocean olive "
    "orange oven owl paint palace paper park pearl pebble pencil piano pillow planet plum pocket pond potato "
    "puzzle rabbit radio raft rain ribbon ring river road robot rocket roof rope rose sail salt sand school "
    "shadow sheep shell ship shoe silver snow soap spoon square stable star stone storm street sugar sun table "
    "tailor tent thread ticket tiger tower train tree trumpet tunnel turtle valley violin wagon wall water "
    "wheel whistle willow window winter wolf wool yard zebra"
)
QUALITIES = _words(
    "amber ancient blue bold brave bright broken brown calm clever cold crooked curious dark deep distant dusty "
    "early empty faint fast fierce gentle golden gray green happy heavy hidden hollow honest hungry icy kind "
    "large late lazy light little lonely loud lucky narrow new noisy odd old pale patient plain polite proud "
    "purple quick quiet rare red rough round rusty sad sharp shy silent simple sleepy slow small smooth soft "
    "sour steep strange strong sunny sweet tall tiny tired warm white wild wise wooden yellow young"
)
ACTIONS = _words(
    "admires answers borrows breaks builds buries buys carries catches chases cleans climbs counts covers crosses "
    "draws drops enters fears feeds fills finds fixes follows forgets gathers guards hears helps hides holds "
    "keeps knows leaves lifts likes loses loves makes meets misses moves needs opens paints passes pulls pushes "
    "reads remembers repairs saves seeks sells sends shakes shares shows sings steals studies takes teaches "
    "throws touches trades turns visits wakes wants warms washes watches wears weighs writes"
)
MANNERS = _words(
    "again alone always badly briefly carefully daily eagerly easily gladly gently here nearly never often once "
    "outside proudly rarely sadly safely seldom slowly softly sometimes soon there today together twice upstairs"
)
LINKS = _words(
    "above across after against along among around before behind below beside between beyond by for from in inside near over past through toward under until with without"
)
KEYS = _words(
    "age area city code color cost count date depth group height id key kind label level mass name note number page path place price rank rate ratio role score size speed state tag team title total type unit value weight width year zone"
)
