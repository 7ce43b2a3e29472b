"""What timm and torchvision put off works when somebody uses it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import sys
import torch
from probseg import quick_imports

disable = torch.compiler.disable
timm = quick_imports.import_timm()
put_off = {"torch._dynamo", "torch._dynamo.utils", "sympy", "wandb"}
assert not put_off & set(sys.modules), put_off & set(sys.modules)
assert torch.compiler.disable is disable
assert quick_imports.import_timm() is timm is sys.modules["timm"]

# Feature maps by torchvision's tracer
network = timm.create_model("resnet10t", features_only=True, feature_cls="fx").eval()
plain = timm.create_model("resnet10t", features_only=True).eval()
image = torch.rand(1, 3, 32, 32)
plain.load_state_dict(network.graph_module.state_dict(), strict=False)
assert all(map(torch.equal, network(image), plain(image)))

# torchvision's question to the compiler, and anything else of the module
roi_align = sys.modules["torchvision.ops.roi_align"]
stand_in = roi_align.is_compile_supported.__self__
assert not put_off & set(sys.modules)
answer = roi_align.is_compile_supported("cpu")
assert answer == torch._dynamo.utils.is_compile_supported("cpu")
assert stand_in.counters is torch._dynamo.utils.counters

# Functions that timm keeps from being compiled are not, within a compiled one
compiling = []

def watched(numbers):
    compiling.append(torch.compiler.is_compiling())
    return numbers + 1

for kept_out in (watched, quick_imports._disable(watched), quick_imports._disable()(watched)):
    torch.compile(lambda numbers: 2 * kept_out(numbers), backend="eager")(torch.zeros(2))
assert compiling == [True, False, False], compiling
"""


def test_what_is_left_out_is_imported_when_somebody_uses_it(repository):
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
