"""`python -m lab.real.plan EXPERIMENT`: the plan that the pod would mount, in a process of its own because of jsii."""

from __future__ import annotations

import sys
from pathlib import Path

from cdk8s_charts.plan import plan_text
from experiment import load

if __name__ == "__main__":
    print(plan_text(load(Path(sys.argv[1]))))
