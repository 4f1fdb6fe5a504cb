"""Old module paths and names of what moved or was renamed: they forward, with a warning.

They go with the release after this one. Imports next to nothing itself.
"""

import sys

TYPE_CHECKING = False  # as in draftwood.lazy
if TYPE_CHECKING:
    from types import ModuleType

MOVED = {
    "draftwood.pytorch": "draftwood_torch",
    "draftwood.pytorch.models.general": "draftwood_torch.general",
    "draftwood.pytorch.models.hybrid": "draftwood_torch.recurrences.hybrid",
    "draftwood.models.recurrences": "draftwood_torch.recurrences",
    "draftwood.models.torch": "draftwood_torch.lean",
    "draftwood.text.hooks": "draftwood_torch.hook",
    "draftwood.models.transformers": "draftwood_torch.models.transformers",
    "draftwood.models.tensors": "draftwood_torch.tensors",
    "draftwood.bench": "draftwood_bench",
    "draftwood.cli.bench": "draftwood_bench.cli.bench",
    "draftwood.bench.report.methods_table": "draftwood_bench.report.method_speeds",
    "draftwood.cli.bench_measurements": "draftwood_bench.cli.measurements",
    "draftwood.cli.bench_options": "draftwood_bench.cli.options",
    "draftwood.cli.bench_show": "draftwood_bench.cli.show",
    "draftwood.cli.plan": "draftwood_bench.cli.plan",
    "draftwood.cli.report": "draftwood_bench.cli.report",
    "draftwood.cli.serve": "draftwood_serve.command",
    "draftwood.cli.train": "draftwood_train.cli.train",
    "draftwood.cli.train_data": "draftwood_train.cli.data",
    "draftwood.cli.train_export": "draftwood_train.cli.export",
    "draftwood.cli.train_recipe": "draftwood_train.cli.recipe",
    "draftwood.costs.machine": "draftwood_bench.machine",
    "draftwood.costs.plan": "draftwood_bench.planner",
    "draftwood.drafters.aded": "draftwood_methods.drafters.aded",
    "draftwood.drafters.cascade": "draftwood_methods.drafters.cascade",
    "draftwood.drafters.dynamic_exit": "draftwood_methods.drafters.dynamic_exit",
    "draftwood.drafters.early_exit": "draftwood_methods.drafters.early_exit",
    "draftwood.drafters.horizontal": "draftwood_methods.drafters.per_level",
    "draftwood.drafters.input_guided": "draftwood_methods.drafters.input_guided",
    "draftwood.drafters.jacobi": "draftwood_methods.drafters.jacobi",
    "draftwood.drafters.layer_search": "draftwood_methods.drafters.layer_search",
    "draftwood.drafters.layer_sets": "draftwood_methods.drafters.layer_sets",
    "draftwood.drafters.layer_skip": "draftwood_methods.drafters.layer_skip",
    "draftwood.drafters.lookahead": "draftwood_methods.drafters.lookahead",
    "draftwood.drafters.merged": "draftwood_methods.drafters.merged",
    "draftwood.drafters.pruned": "draftwood_methods.drafters.pruned",
    "draftwood.drafters.shadow": "draftwood.drafters.int4_self_draft",
    "draftwood.drafters.stand": "draftwood_methods.drafters.stand",
    "draftwood.drafters.token_recycling": "draftwood_methods.drafters.token_recycling",
    "draftwood.drafters.windowed": "draftwood_methods.drafters.windowed",
    "draftwood.drafters.lazy_resources": "draftwood.drafters.resources",
    "draftwood.engine.ahead": "draftwood.engine.executors.ahead",
    "draftwood.engine.answers": "draftwood.engine",
    "draftwood.engine.overlap": "draftwood.drafters.overlap",
    "draftwood.engine.room": "draftwood.engine.scheduler",
    "draftwood.engine.root_first": "draftwood.engine.executors.overlapped",
    "draftwood.engine.side_thread": "draftwood.drafters.overlap",
    "draftwood.text.arguments": "draftwood.sampling_params",
    "draftwood.text.draft_models": "draftwood.loading.draft_models",
    "draftwood.engine.batch": "draftwood.engine",
    "draftwood.engine.constrained": "draftwood.engine.constraints",
    "draftwood.engine.decoding": "draftwood.engine",
    "draftwood.engine.likely": "draftwood.engine.executors.likely",
    "draftwood.integrations": "draftwood_serve.integrations",
    "draftwood.grammar.calls": "draftwood_serve.tool_calls",
    "draftwood.heads.exits": "draftwood_methods.exits",
    "draftwood.heads.speculators": "draftwood_train.speculators",
    "draftwood.methods.recipes_of_parts": "draftwood_methods.of_parts",
    "draftwood.methods.recipes_of_several": "draftwood_methods.of_several",
    "draftwood.models.block_views": "draftwood.models.cache.block_views",
    "draftwood.models.blocks": "draftwood.models.cache.blocks",
    "draftwood.models.ends": "draftwood_torch.models.embeddings_and_head",
    "draftwood.models.graphs": "draftwood_torch.lean.graphs",
    "draftwood.models.lean": "draftwood_torch.lean.model",
    "draftwood.models.native_ends": "draftwood.models.native.embeddings_and_head",
    "draftwood.models.native_places": "draftwood.models.native.step",
    "draftwood.models.native_step": "draftwood.models.native.step",
    "draftwood.models.pooled": "draftwood.models.cached",
    "draftwood.models.prefixes": "draftwood.models.native.prefixes",
    "draftwood.loading.sizes": "draftwood_bench.sizes",
    "draftwood.models.size": "draftwood_bench.sizes",
    "draftwood.models.shadow": "draftwood.models.native.int4",
    "draftwood.interfaces.ahead": "draftwood.drafters.ahead",
    "draftwood.interfaces.constraint": "draftwood.engine.constraint",
    "draftwood.interfaces.drafter": "draftwood.drafters.drafter",
    "draftwood.interfaces.fingerprint": "draftwood.models.fingerprint",
    "draftwood.interfaces.model": "draftwood.models.model",
    "draftwood.interfaces.resources": "draftwood.drafters.resources",
    "draftwood.interfaces.shape": "draftwood.shapes.shape",
    "draftwood.interfaces.size": "draftwood_bench.sizes",
    "draftwood.interfaces.source": "draftwood.sources.source",
    "draftwood.interfaces.step": "draftwood.models.requirements",
    "draftwood.interfaces.trained": "draftwood.heads.trained",
    "draftwood.interfaces.verifier": "draftwood.verifiers.verifier",
    "draftwood.interfaces": "draftwood.models",
    "draftwood.serve": "draftwood_serve",
    "draftwood.serve.measures": "draftwood_serve.metrics",
    "draftwood.serve.sums": "draftwood_serve.aggregate",
    "draftwood.shapes.merged_graph": "draftwood_methods.shapes.merged_graph",
    "draftwood.shapes.until": "draftwood_methods.shapes.until",
    "draftwood.sources.n_grams": "draftwood.sources.auto.n_grams",
    "draftwood.sources.suffix": "draftwood.sources.auto.suffix",
    "draftwood.sources.alike": "draftwood.sources.nearest_state",
    "draftwood.sources.native_merger": "draftwood.sources.merger",
    "draftwood.sources.stored_exits": "draftwood_methods.exits",
    "draftwood.sources.shadow": "draftwood.sources.int4_self_draft",
    "draftwood.training": "draftwood_train",
    "draftwood.verifiers.blockwise": "draftwood_methods.verifiers.blockwise",
    "draftwood.verifiers.optimal": "draftwood_bench.run.optimal",
    "draftwood.verifiers.typical": "draftwood_methods.verifiers.typical",
    "draftwood_bench.report.methods_table": "draftwood_bench.report.method_speeds",
    "draftwood_methods.drafters.horizontal": "draftwood_methods.drafters.per_level",
    "draftwood_serve.measures": "draftwood_serve.metrics",
    "draftwood_serve.sums": "draftwood_serve.aggregate",
}

EXPORTED = {
    "drafters": (
        *("Aded", "Cascade", "DynamicExit", "EarlyExit", "InputGuided", "Jacobi"),
        *("LayerSearch", "LayerSkip", "LenientCascade", "Lookahead", "MergedDrafters"),
        *("MergedDrawn", "Pruned", "Stand", "TokenRecycling", "Windowed"),
    ),
    "shapes": ("MergedGraph", "Until"),
    "verifiers": ("Distance", "TopN", "Typical"),
}
"""Names that folders of the core exported before, by folder; draftwood_methods has them now."""

RENAMED = {
    "draftwood.Decoding": "draftwood.Sequence",
    "draftwood.drafters.FourBitShadow": "draftwood.drafters.Int4SelfDraft",
    "draftwood.drafters.Horizontal": "draftwood_methods.drafters.PerLevel",
    "draftwood.drafters.WithShadow": "draftwood.drafters.WithInt4SelfDraft",
    "draftwood.engine.Input": "draftwood.engine.ModelInput",
    "draftwood.engine.Answers": "draftwood.engine.ParallelSampling",
    "draftwood.engine.Batch": "draftwood.engine.Scheduler",
    "draftwood.engine.Decoding": "draftwood.engine.Sequence",
    "draftwood.verifiers.optimal_acceptance": "draftwood_bench.run.optimal.optimal_acceptance",
    "draftwood.sources.Alike": "draftwood.sources.NearestState",
    **{
        f"draftwood.grammar.{name}": f"draftwood_serve.tool_calls.{name}"
        for name in ("CallDelta", "ContentDelta", "ToolCall", "ToolReader", "read_calls")
    },
    "draftwood.grammar.read_tools": "draftwood_serve.tool_requests.read_tools",
    "draftwood.methods.Recipe": "draftwood.methods.MethodSpec",
}
"""Names that packages of the core exported before, and the names of the same objects now."""


class MovedWarning(FutureWarning):
    """A module is imported by the path, or an option given by the name, that it had before."""


class OldPaths:
    """Find modules by their old paths, as the same objects as by their new ones."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> object:
        if not fullname.startswith("draftwood") or new_path(fullname) is None:
            return None
        from importlib.machinery import ModuleSpec

        return ModuleSpec(fullname, self)  # type: ignore[arg-type]

    def create_module(self, spec: object) -> None:
        """Leave it to the import system; ``exec_module`` puts the right one in its place."""

    def exec_module(self, module: "ModuleType") -> None:
        sys.modules[module.__name__] = _import(module.__name__, str(new_path(module.__name__)))


def forward() -> None:
    """Let old paths be imported; before other finders, which would make second copies."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, OldPaths())  # type: ignore[arg-type]


def new_path(old: str) -> str | None:
    """Translate an old module path; None for one that did not move."""
    for prefix, new in sorted(
        MOVED.items(), reverse=True
    ):  # a module's own entry, then its folder's
        if old == prefix or old.startswith(f"{prefix}."):
            return new + old.removeprefix(prefix)
    return None


def moved_name(package: str, name: str) -> object:
    """Look up a name that a package of the core exported before.

    Raises:
        AttributeError: where it never did.
    """
    old = f"{package}.{name}"
    if old in RENAMED:
        home, _, new = RENAMED[old].rpartition(".")
        return getattr(_import(old, home, RENAMED[old]), new)
    axis = package.rpartition(".")[2]
    if name not in EXPORTED.get(axis, ()):
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(_import(old, f"draftwood_methods.{axis}"), name)


def renamed(old: str, new: str, stacklevel: int = 5) -> None:
    """Warn that an option has another name now."""
    import warnings

    warnings.warn(f"{old} is {new} now", MovedWarning, stacklevel=stacklevel)


def _import(old: str, new: str, named: str = "") -> "ModuleType":
    import warnings
    from importlib import import_module

    warnings.warn(f"{old} is {named or new} now", MovedWarning, stacklevel=3)
    try:
        return import_module(new)
    except ModuleNotFoundError as error:
        from draftwood.optional import install_command

        package = new.partition(".")[0].replace("_", "-")
        raise ModuleNotFoundError(
            f"{old} is in the package {package} now; install it: {install_command(package)}",
            name=error.name,
        ) from None
