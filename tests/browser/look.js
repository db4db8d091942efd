// What is wrong with the page as it is shown now: a list of sentences. Runs in the page, with `arguments[0]` as options.
const { printed } = arguments[0];
const found = [];
const root = document.documentElement;
const say = (what, ...nodes) => found.push(`${what}: ${nodes.map(short).join(" | ")}`);
const short = (one) => (one.textContent ?? one).trim().replace(/\s+/g, " ").slice(0, 60) || one.outerHTML?.slice(0, 120);

if (root.scrollWidth > root.clientWidth) {
  const wide = [...document.body.querySelectorAll("*")].filter(
    (one) => !one.closest(".scroll") && one.getBoundingClientRect().right > root.clientWidth + 1);
  say(`the page is ${root.scrollWidth} pixels wide, the window ${root.clientWidth}`, ...wide.slice(0, 3));
}

// Every visible piece of text with the boxes of its lines; what a box of its own scrolls is cut off by that box.
const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || parent.closest("title, desc, .unseen") || !parent.checkVisibility()) continue;
  const range = document.createRange();
  range.selectNodeContents(node);
  const clip = parent.closest(".scroll")?.getBoundingClientRect();
  for (const box of range.getClientRects())
    if (box.width > 0 && (!clip || (box.left >= clip.left && box.right <= clip.right)))
      texts.push({ node, parent, box, scrolled: Boolean(clip) });
}
for (const { node, box, scrolled } of texts)
  if (!scrolled && (box.left < -1 || box.right > root.clientWidth + 1)) say("text beyond the window", node);

// On paper a word is whole: it may part at a hyphen and nowhere else. What a server wrote is as long as it is.
if (printed)
  for (const { node, parent } of texts)
    if (!parent.closest("pre, svg"))
      for (const word of node.data.matchAll(/[^\s-]+/g)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        const lines = new Set([...range.getClientRects()].filter((box) => box.width > 0).map((box) => Math.round(box.top)));
        if (lines.size > 1) say("a broken word", word[0]);
      }

const meet = (a, b, slack) =>
  a.left < b.right - slack && b.left < a.right - slack && a.top < b.bottom - slack && b.top < a.bottom - slack;

// Marks, with the width of their strokes.
const marks = [...document.querySelectorAll("path.mark, .mark path")].filter((one) => one.checkVisibility()).map((one) => {
  const { left, right, top, bottom } = one.getBoundingClientRect(), style = getComputedStyle(one);
  const half = style.stroke === "none" ? 0 : parseFloat(style.strokeWidth) / 2;
  const across = style.strokeLinecap === "butt" && top === bottom ? 0 : half; // a flat line ends where it ends
  return { one, style, box: { left: left - across, right: right + across, top: top - half, bottom: bottom + half } };
});
for (const { node, box } of texts)
  for (const mark of marks) if (meet(box, mark.box, 1)) say("a label lies on a mark", node, mark.one);
for (const [index, one] of texts.entries())
  for (const other of texts.slice(index + 1))
    if (one.node !== other.node && meet(one.box, other.box, 2)) say("two texts overlap", one.node, other.node);

// Marks stay in their lane or plot area.
for (const { one, box } of marks) {
  const area = (one.closest("svg").querySelector(".plot") ?? one.closest("svg")).getBoundingClientRect();
  const out = Math.max(area.left - box.left, box.right - area.right, area.top - box.top, box.bottom - area.bottom);
  if (out > 7) say(`a mark is ${out.toFixed(1)} pixels outside its area`, one);
}

// WCAG 2: contrast of 4.5 for text, of 3 for what a figure says.
const light = (colour) => {
  const parts = colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (!/, 0\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
if (!printed) {
  const poor = new Set();
  for (const { node, parent } of texts) {
    const style = getComputedStyle(parent), ratio = contrast(parent.ownerSVGElement ? style.fill : style.color, behind(parent));
    if (ratio < 4.5) poor.add(`contrast ${ratio.toFixed(2)}: ${short(node)}`);
  }
  for (const { one, style } of marks) {
    const colour = style.stroke === "none" ? style.fill : style.stroke;
    if (colour === "none" || one.closest(".band, .hole")) continue;
    if (contrast(colour, behind(one)) < 3) poor.add(`contrast of a mark ${colour}`);
  }
  found.push(...poor);
}

return [...new Set(found)].slice(0, 12);
