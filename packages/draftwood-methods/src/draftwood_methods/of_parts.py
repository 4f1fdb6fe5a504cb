"""Published methods in which parts of the target draft for it."""

from draftwood import methods
from draftwood.shapes import Widths
from draftwood.verifiers import Match, Rejection
from draftwood_methods.drafters.dynamic_exit import DynamicExit
from draftwood_methods.drafters.early_exit import EarlyExit
from draftwood_methods.drafters.layer_search import LayerSearch
from draftwood_methods.drafters.pipelined import Pipelined
from draftwood_methods.drafters.pruned import Pruned
from draftwood_methods.drafters.windowed import Windowed

OF_PARTS = (
    methods.MethodSpec(
        "layer-search",
        "the model without the parts of its layers that a search finds it misses least",
        "CLaSp: Chen et al. 2025, arXiv:2505.24196; SWIFT: Xia et al. 2025, arXiv:2410.06916",
        LayerSearch,
        Widths((1, 1, 1)),
        Rejection(),
    ),
    methods.MethodSpec(
        "early-exit",
        "the model's first layers draft, and verification goes on behind them",
        "after Elhoushi et al. 2024, arXiv:2404.16710",
        EarlyExit,
        Widths((1, 1, 1)),
        Rejection(),
    ),
    methods.MethodSpec(
        "ppd",
        "successors that the first layers hold likely, verified while the other layers run",
        "after Yang et al. 2023, arXiv:2307.05908",
        EarlyExit,
        Widths((3,)),
        Rejection(),
    ),
    methods.MethodSpec(
        "ppd-pipelined",
        "successors that the first layers hold likely, begun while the other layers run",
        "Yang et al. 2023, arXiv:2307.05908",
        Pipelined,
        None,
        Match(),
    ),
    methods.MethodSpec(
        "del",
        "as many of the first layers draft as many tokens as have paid so far",
        "Entezari Zarch et al. 2025, arXiv:2504.05598",
        DynamicExit,
        None,
        Rejection(),
    ),
    methods.MethodSpec(
        "windowed",
        "the model drafts, reading only the first and the newest of a long text",
        "after Yang et al. 2025, arXiv:2502.17421; Xiao et al. 2023, arXiv:2309.17453",
        Windowed,
        Widths((1, 1, 1, 1)),
        Rejection(),
    ),
    methods.MethodSpec(
        "propd",
        "recycling's tree, which unlikely nodes leave after the first layers of the pass",
        "Zhong et al. 2024, arXiv:2402.13485",
        Pruned,
        None,
        Match(),
    ),
)
