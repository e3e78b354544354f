"""Owns what is known of ONNX Runtime's session options: attribute names, config keys and their legal values.

ONNX Runtime accepts unknown config keys and most junk values in silence, and a few junk values abort the
process, so a recipe is checked against this table before any session is made. Must never guess a value.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

from ort_stacktune.failures import invalid

OptionValue = bool | int | str

# Attributes of SessionOptions that shape execution and can be read back, with what they take.
ATTRIBUTES: Mapping[str, tuple[str, ...] | type] = {
    "enable_cpu_mem_arena": bool,
    "enable_mem_pattern": bool,
    "enable_mem_reuse": bool,
    "execution_mode": ("ORT_SEQUENTIAL", "ORT_PARALLEL"),
    "execution_order": ("DEFAULT", "PRIORITY_BASED", "MEMORY_EFFICIENT"),
    "graph_optimization_level": (
        "ORT_DISABLE_ALL",
        "ORT_ENABLE_BASIC",
        "ORT_ENABLE_EXTENDED",
        "ORT_ENABLE_LAYOUT",
        "ORT_ENABLE_ALL",
    ),
    "inter_op_num_threads": int,
    "intra_op_num_threads": int,
    "log_severity_level": int,
    "log_verbosity_level": int,
    "logid": str,
    "use_deterministic_compute": bool,
    "use_per_session_threads": bool,
}

# The enum class of onnxruntime behind an attribute that takes names.
ENUMS = {
    "execution_mode": "ExecutionMode",
    "execution_order": "ExecutionOrder",
    "graph_optimization_level": "GraphOptimizationLevel",
}

# Attributes that say nothing about how fast or how right a session is.
COSMETIC_ATTRIBUTES = frozenset({"log_severity_level", "log_verbosity_level", "logid"})

_FLAG = ("0", "1")


@dataclass(frozen=True, slots=True)
class WholeNumber:
    """What an option takes that wants a whole number from ``low`` to ``high``."""

    low: int
    high: int

    def admits(self, value: str) -> bool:
        """Whether a text is such a number."""
        digits = value[1:] if value.startswith("-") else value
        # No 64-bit number has more digits, and Python refuses to read very many.
        plausible = digits.isascii() and digits.isdigit() and len(digits) <= 20
        return plausible and self.low <= int(value) <= self.high

    def describe(self) -> str:
        """Returns what is expected, for a message."""
        return f"a whole number from {self.low} to {self.high}"


_INT32_MAX = 2**31 - 1

# Config key -> its legal values; None where any text may be legal (paths, lists, names).
CONFIG: Mapping[str, tuple[str, ...] | WholeNumber | None] = {
    "ep.context_embed_mode": _FLAG,
    "ep.context_enable": _FLAG,
    "ep.context_file_path": None,
    "mlas.disable_kleidiai": _FLAG,
    "mlas.enable_gemm_fastmath_arm64_bfloat16": _FLAG,
    "mlas.nchwc_pointwise_conv_max_input_channel_batch": WholeNumber(0, _INT32_MAX),
    "mlas.use_lut_gemm": _FLAG,
    "optimization.disable_specified_optimizers": None,
    "optimization.enable_cast_chain_elimination": _FLAG,
    "optimization.enable_gelu_approximation": _FLAG,
    "optimization.memory_optimizer_config": None,
    "optimization.minimal_build_optimizations": None,
    "session.debug_layout_transformation": _FLAG,
    "session.disable_aot_function_inlining": _FLAG,
    "session.disable_cpu_ep_fallback": _FLAG,
    "session.disable_double_qdq_remover": _FLAG,
    "session.disable_ep_fallback": _FLAG,
    "session.disable_model_compile": _FLAG,
    "session.disable_prepacking": _FLAG,
    "session.disable_quant_qdq": _FLAG,
    "session.dynamic_block_base": WholeNumber(0, _INT32_MAX),
    "session.enable_dq_matmulnbits_fusion": _FLAG,
    "session.enable_quant_qdq_cleanup": _FLAG,
    "session.force_spinning_stop": _FLAG,
    "session.inter_op.allow_spinning": _FLAG,
    "session.intra_op.allow_spinning": _FLAG,
    "session.intra_op.spin_backoff_max": WholeNumber(1, _INT32_MAX),
    "session.intra_op.spin_duration_us": WholeNumber(-1, _INT32_MAX),
    "session.inter_op.spin_duration_us": WholeNumber(-1, _INT32_MAX),
    "session.intra_op_thread_affinities": None,
    "session.load_model_format": ("ORT", "ONNX"),
    "session.model_external_initializers_file_folder_path": None,
    "session.node_partition_config_file": None,
    "session.optimized_model_external_initializers_file_name": None,
    "session.qdq_matmulnbits_accuracy_level": ("0", "1", "2", "3", "4"),
    "session.qdqisint8allowed": _FLAG,
    "session.record_ep_graph_assignment_info": _FLAG,
    "session.save_model_format": ("ORT", "ONNX"),
    "session.set_denormal_as_zero": _FLAG,
    "session.strict_shape_type_inference": _FLAG,
    "session.use_device_allocator_for_initializers": _FLAG,
    "session.use_env_allocators": _FLAG,
    "session.use_memory_mapped_ort_model": _FLAG,
    "session.use_ort_model_bytes_directly": _FLAG,
    "session.use_ort_model_bytes_for_initializers": _FLAG,
    "session.x64quantprecision": _FLAG,
    "ep.dynamic.workload_type": ("Default", "Efficient"),
}

# Config entries that decide what a session writes or records, not how it computes.
RECORDING_CONFIG = frozenset(
    {
        "session.record_ep_graph_assignment_info",
        "session.save_model_format",
        "session.optimized_model_external_initializers_file_name",
    }
)

# Run config entries that can be read back from a caller's RunOptions.
RUN_CONFIG = (
    "disable_synchronize_execution_providers",
    "ep.dynamic.workload_type",
    "gpu_graph_id",
    "memory.enable_memory_arena_shrinkage",
    "qnn.htp_perf_mode",
    "qnn.rpc_control_latency",
)

_CLOSE_ENOUGH_TO_BE_A_SLIP = 0.92


def check_attribute(name: str, value: object) -> OptionValue:
    """Returns a session option in its plain form: enum members become their names.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for an unknown attribute or a value it does not take.
    """
    legal = ATTRIBUTES.get(name)
    if legal is None:
        near = difflib.get_close_matches(name, ATTRIBUTES, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(ATTRIBUTES)}"
        raise invalid(f"session option {name!r} is not one a recipe can set; {hint}")
    if isinstance(legal, tuple):
        text = value if isinstance(value, str) else getattr(value, "name", repr(value))
        if text not in legal:
            raise invalid(f"session option {name} is {text!r}; expected one of {', '.join(legal)}")
        return str(text)
    if not isinstance(value, legal) or (legal is int and isinstance(value, bool)):
        raise invalid(f"session option {name} is {value!r}; expected {legal.__name__}")
    if name.endswith("_num_threads") and isinstance(value, int) and value < 0:
        raise invalid(f"session option {name} is {value}; expected 0 for ONNX Runtime's default, or more")
    assert isinstance(value, bool | int | str)
    return value


def check_config(key: str, value: object) -> str:
    """Returns a session config value as text.

    An unknown key passes, since builds and plugin execution providers bring their own, unless it looks like
    a slip of a known one.

    Raises:
        TuneFailure: ``INVALID_INPUT`` for a value outside the legal ones, or a likely slip.
    """
    if not isinstance(key, str) or not key:
        raise invalid(f"session config key is {key!r}; expected nonempty text")
    text = ("1" if value else "0") if isinstance(value, bool) else str(value)
    if key not in CONFIG:
        near = difflib.get_close_matches(key, CONFIG, 1, _CLOSE_ENOUGH_TO_BE_A_SLIP)
        if near:
            raise invalid(f"session config key {key!r} is unknown; did you mean {near[0]!r}?")
        return text
    legal = CONFIG[key]
    if isinstance(legal, tuple) and text not in legal:
        raise invalid(f"session config {key} is {text!r}; expected one of {', '.join(legal)}")
    if isinstance(legal, WholeNumber) and not legal.admits(text):
        raise invalid(f"session config {key} is {text!r}; expected {legal.describe()}")
    return text
