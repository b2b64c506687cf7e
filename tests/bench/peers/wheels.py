"""Triton kernels of other projects, from unpacked wheels: of these only Python files are needed,
and what they import beside PyTorch and Triton is stood in for. Nothing of theirs is kept here."""

import glob
import importlib
import os
import sys
import types

# What the peers were written against; another version is not timed.
VERSIONS = {"sglang": "0.5.23", "transformer_engine": "2.20.2"}
NAMES = {"sglang": "SGLang", "transformer_engine": "TransformerEngine"}


class Absent(Exception):
    pass


def version_in(folder, project):
    """By the wheel's own METADATA; None if it is not there."""
    for path in glob.glob(os.path.join(folder, f"{project}-*.dist-info", "METADATA")):
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.startswith("Version:"):
                    return line.split(":", 1)[1].strip()
    return None


class _Off:
    """Any setting, switched off."""

    def __getattr__(self, name):
        return self

    def get(self):
        return False


class _Here:
    """PyTorch for modules that make their tensors on "cuda" whatever their inputs are on."""

    def __init__(self, torch, device):
        self._torch, self._device = torch, device

    def __getattr__(self, name):
        return getattr(self._torch, name)

    def empty(self, *size, **options):
        return self._torch.empty(*size, **{**options, "device": self._device})

    def zeros(self, *size, **options):
        return self._torch.zeros(*size, **{**options, "device": self._device})


class Wheels:
    def __init__(self, folder, torch, device):
        self.folder, self.torch, self.device = folder, torch, device
        self.loaded = {}

    def versions(self):
        found = {project: version_in(self.folder, project) if self.folder else None
                 for project in VERSIONS}
        return {NAMES[project]: version for project, version in found.items() if version}

    def module(self, name):
        """`sglang.kernels.ops.moe.router`, say. Throws Absent with the reason."""
        project = name.split(".")[0]
        if name not in self.loaded:
            self._require(project)
            for stub, contents in self._stubs(project).items():
                self._stand_in(stub, contents)
            self.loaded[name] = self._load(name)
        return self.loaded[name]

    def _require(self, project):
        wanted, title = VERSIONS[project], NAMES[project]
        if not self.folder:
            raise Absent(f"no --wheels with {title} {wanted}")
        found = version_in(self.folder, project)
        if found != wanted:
            raise Absent(f"--wheels has {title} {found or 'not at all'}, wanted {wanted}")
        try:
            import triton  # noqa: F401
        except ImportError as error:
            raise Absent(f"no Triton: {error}") from error

    def _load(self, name):
        path = os.path.join(self.folder, *name.split(".")) + ".py"
        if not os.path.exists(path):
            raise Absent(f"--wheels lacks {name}")
        self._stand_in(name.rpartition(".")[0], {})
        if self.device != "cpu":
            return importlib.import_module(name)
        with _one_configuration():
            module = importlib.import_module(name)
        module.torch = _Here(self.torch, self.device)
        return module

    def _stand_in(self, name, contents):
        """A module of that name in its package, all of them made where they are not there. Its
        own __init__ is not run; what else is in its folder can be imported."""
        parent, _, last = name.rpartition(".")
        if parent:
            self._stand_in(parent, {})
        module = sys.modules.get(name)
        if module is None:
            module = types.ModuleType(name)
            module.__path__ = [os.path.join(self.folder, *name.split("."))]
            sys.modules[name] = module
            if parent:
                setattr(sys.modules[parent], last, module)
        for key, value in contents.items():
            setattr(module, key, value)

    def _stubs(self, project):
        if project == "transformer_engine":
            return {}
        no = lambda *_: False
        # As its own rule: programmatic launches from Hopper on.
        dependent = lambda: (self.device != "cpu"
                             and self.torch.cuda.get_device_capability()[0] >= 9)
        return {
            # Not asked for by the kernels that are timed, only by what they could import.
            "sglang.srt.utils": {"is_hip": no, "is_cuda": no, "is_musa": no,
                                 "ceil_div": lambda a, b: -(-a // b)},
            "sglang.srt.environ": {"envs": _Off()},
            "sglang.srt.layers.dp_attention": {"is_dp_attention_enabled": no},
            "sglang.kernels.jit.utils": {"is_arch_support_pdl": dependent,
                                         "get_jit_cuda_arch": None},
            "sglang.kernels.kernel_api_logging": {"debug_kernel_api": lambda function: function},
            "sglang.kernels.ops.moe": {},
            "sglang.kernels.ops.moe.moe_route_radix": {"covered": no},
        }


class _one_configuration:
    """Triton's interpreter cannot time the configurations that autotuning would choose from."""

    def __enter__(self):
        import triton
        self.triton, self.whole = triton, triton.autotune
        triton.autotune = lambda configs, **options: self.whole(configs=configs[-1:], **options)

    def __exit__(self, *_):
        self.triton.autotune = self.whole

