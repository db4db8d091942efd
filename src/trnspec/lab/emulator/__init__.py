"""An emulated vLLM-on-Trainium2 endpoint: vLLM's HTTP dialect in real time, with modelled timings.

It reads the argv of a rendered Deployment and answers as that arm would: one engine step after the other, k draft passes and
one verification a step, 1..k tokens out. No model runs; `timings.py` says where each figure comes from. Everything that leaves the process says that it is emulated: the header
`X-Emulated`, `owned_by: emulator` in /v1/models, the version string.
"""
