"""A rehearsal of the AWS side on loopback: the synthesized templates, as they are, into moto.

It is not a deployment. It proves that every template is accepted, that every reference and export between the stacks
resolves and that the order of the stacks works. What it cannot prove is listed with every result: types that moto has no
model for, and types of which only the properties are kept.
"""
