"""ray-project/llmperf as a harness, for those who must compare with figures that it made.

`harness` asks llmperf for one cell after the other and keeps what it measured in this project's records; `program` is
llmperf itself with what has to be mended, in a process of its own; `observed` is its HTTP client with a witness. The first
needs llmperf's sources and nothing of its packages, the other two run where those are (images/llmperf).
"""
