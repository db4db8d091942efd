"""A rehearsal of the AWS side on loopback: the synthesized templates, as they are, into moto, and read back.

It is no deployment. What it proves: every template is accepted, every reference and export between the stacks
resolves, the order of the stacks works, and what the APIs then show is what the experiment asked for. What it cannot
prove is listed with every result: types that moto has no model for, and types of which only the properties are kept.
"""
