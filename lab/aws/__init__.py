"""A rehearsal of the AWS side on loopback: the synthesized templates, as they are, into moto, and read back.

It is not a deployment. It proves that every template is accepted, that every reference and export between the stacks
resolves, that the order of the stacks works, and that the APIs then show what the experiment asked for. What it cannot
prove is listed with every result: types that moto has no model for, and types of which only the properties are kept.
"""
