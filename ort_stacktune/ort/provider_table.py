"""Owns what is known of the options of execution providers, one row an option, and nothing but that.

A row says what an option takes, since which version of ONNX Runtime it is there, what it does to numbers and
whether it costs time at the first touch of a shape. Rules that use the rows are in
:mod:`ort_stacktune.ort.provider_options`. Must never hold an option that was not seen in a release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ort_stacktune.ort.options import WholeNumber

Version = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Text:
    """What an option takes that wants text of a form which only the provider itself can check.

    Attributes:
        form: What the text is.
    """

    form: str


Legal = tuple[str, ...] | WholeNumber | Text


@dataclass(frozen=True, slots=True)
class ProviderOption:
    """One option of an execution provider.

    Attributes:
        does: What it does.
        legal: What it takes.
        since: Version of ONNX Runtime that brought it; (1, 0) for one that was there early.
        gone: Version from which on it is known not to be there; ``None`` while it is.
        default: The value it has where it is not set, where that is known.
        rounds: Whether it may change results by rounding: other algorithms, other orders of summation.
        reduces: Value -> the precision that results are computed in with it, below the graph's own.
        first_touch: Whether it makes the first run of a shape, or the making of a session, take longer.
    """

    does: str
    legal: Legal
    since: Version = (1, 0)
    gone: Version | None = None
    default: str = ""
    rounds: bool = False
    reduces: Mapping[str, str] = field(default_factory=dict)
    first_touch: bool = False


CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"
TENSORRT_RTX = "NvTensorRTRTXExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
WEBGPU = "WebGpuExecutionProvider"
DIRECTML = "DmlExecutionProvider"
COREML = "CoreMLExecutionProvider"
MIGRAPHX = "MIGraphXExecutionProvider"

FLAG = ("0", "1", "false", "true", "False", "True")
ON = ("1", "true", "True")
_WORDS = ("false", "true", "False", "True")
_BIT = ("0", "1")
_INT = WholeNumber(0, 2**31 - 1)
_COUNT = WholeNumber(1, 2**31 - 1)
_SIZE = WholeNumber(0, 2**64 - 1)
_PATH = Text("a path")
_NAMES = Text("names joined by commas")
_SHAPES = Text("shapes such as x:1x3x224x224,y:2x4")
_ARENA = ("kNextPowerOfTwo", "kSameAsRequested")
_CACHE_MODES = ("disabled", "lazyRelease", "simple", "bucket")


def _on(precision: str) -> dict[str, str]:
    return dict.fromkeys(ON, precision)


_CUDA = {
    "arena_extend_strategy": ProviderOption("how its memory arena grows", _ARENA, default=_ARENA[0]),
    "cuda_mem_limit": ProviderOption("earlier name of gpu_mem_limit", _SIZE, gone=(1, 24)),
    "cudnn_conv1d_pad_to_nc1d": ProviderOption(
        "pads convolutions over one dimension to (N, C, 1, D)", FLAG, (1, 12), default="0", rounds=True
    ),
    "cudnn_conv_algo_search": ProviderOption(
        "how an algorithm is found for a convolution of new shape",
        ("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
        default="EXHAUSTIVE",
        rounds=True,
        first_touch=True,
    ),
    "cudnn_conv_use_max_workspace": ProviderOption(
        "lets convolutions have all the workspace they ask for", FLAG, (1, 10), default="1", rounds=True
    ),
    "device_id": ProviderOption("number of the GPU", _INT, default="0"),
    "do_copy_in_default_stream": ProviderOption(
        "copies in the stream that computes; without it copies race with work", FLAG, default="1"
    ),
    "enable_cuda_graph": ProviderOption(
        "captures the launches of a run and replays them", FLAG, (1, 11), default="0", first_touch=True
    ),
    "enable_cudnn": ProviderOption(
        "uses cuDNN where its own kernels would do too", FLAG, (1, 27), default="1", rounds=True
    ),
    "enable_skip_layer_norm_strict_mode": ProviderOption(
        "normalises in a slower, more accurate way", FLAG, (1, 16), default="0", rounds=True
    ),
    "external_data_loader_reading_threads": ProviderOption(
        "threads that read external weights", _COUNT, (1, 29), default="4"
    ),
    "fuse_conv_bias": ProviderOption(
        "adds the bias within the convolution", FLAG, (1, 20), default="0", rounds=True, first_touch=True
    ),
    "gpu_external_alloc": ProviderOption("address of an allocator", _SIZE, default="0"),
    "gpu_external_empty_cache": ProviderOption("address of an allocator's flush", _SIZE, default="0"),
    "gpu_external_free": ProviderOption("address of an allocator's free", _SIZE, default="0"),
    "gpu_mem_limit": ProviderOption("limit of its memory arena in bytes", _SIZE, (1, 8)),
    "has_user_compute_stream": ProviderOption("whether a stream is given", FLAG, default="0"),
    "prefer_nhwc": ProviderOption(
        "runs layout-sensitive operators in NHWC", FLAG, (1, 17), default="0", rounds=True
    ),
    "sdpa_kernel": ProviderOption(
        "bit mask of the attention kernels allowed; 0 for its own choice",
        WholeNumber(-1, 2**31 - 1),
        (1, 20),
        default="0",
        rounds=True,
    ),
    "tunable_op_enable": ProviderOption(
        "chooses among kernels by earlier tuning", FLAG, (1, 15), default="0", rounds=True
    ),
    "tunable_op_max_tuning_duration_ms": ProviderOption(
        "longest tuning of one operator; 0 for no limit", _INT, (1, 16), default="0", first_touch=True
    ),
    "tunable_op_tuning_enable": ProviderOption(
        "tunes kernels when a shape is new", FLAG, (1, 15), default="0", rounds=True, first_touch=True
    ),
    "use_ep_level_unified_stream": ProviderOption("one stream for all threads", FLAG, (1, 17), default="0"),
    "use_tf32": ProviderOption(
        "multiplies float32 with 10 bits of mantissa", FLAG, (1, 18), default="1", reduces=_on("tf32")
    ),
    "user_compute_stream": ProviderOption("address of a stream of the caller's", _SIZE),
}

_TENSORRT = {
    "device_id": ProviderOption("number of the GPU", _INT, default="0"),
    "has_user_compute_stream": ProviderOption("whether a stream is given", FLAG, default="0"),
    "trt_auxiliary_streams": ProviderOption(
        "further streams for one run; -1 for its own choice",
        WholeNumber(-1, 2**31 - 1),
        (1, 15),
        default="-1",
    ),
    "trt_bf16_enable": ProviderOption(
        "lets layers compute in bfloat16", FLAG, (1, 23), default="0", reduces=_on("bf16")
    ),
    "trt_build_heuristics_enable": ProviderOption(
        "builds faster by heuristics", FLAG, (1, 15), default="0", rounds=True
    ),
    "trt_builder_optimization_level": ProviderOption(
        "effort spent on an engine", WholeNumber(0, 5), (1, 15), default="3", rounds=True, first_touch=True
    ),
    "trt_context_memory_sharing_enable": ProviderOption(
        "subgraphs share their memory", FLAG, (1, 13), default="0"
    ),
    "trt_cuda_graph_enable": ProviderOption(
        "captures the launches of a run and replays them", FLAG, (1, 16), default="0", first_touch=True
    ),
    "trt_detailed_build_log": ProviderOption("logs how an engine is built", FLAG, (1, 15), default="0"),
    "trt_dla_core": ProviderOption("number of the DLA core", _INT, default="0"),
    "trt_dla_enable": ProviderOption(
        "computes on a DLA core", FLAG, default="0", reduces=_on("fp16"), first_touch=True
    ),
    "trt_dump_ep_context_model": ProviderOption("writes a context model", FLAG, (1, 17), default="0"),
    "trt_dump_subgraphs": ProviderOption("writes its subgraphs as files", FLAG, default="0"),
    "trt_engine_cache_enable": ProviderOption("keeps engines on disk", FLAG, default="0"),
    "trt_engine_cache_path": ProviderOption("where engines are kept", _PATH),
    "trt_engine_cache_prefix": ProviderOption("first part of engines' names", Text("a name"), (1, 18)),
    "trt_engine_decryption_enable": ProviderOption("decrypts engines", FLAG, default="0"),
    "trt_engine_decryption_lib_path": ProviderOption("library that decrypts engines", _PATH),
    "trt_engine_hw_compatible": ProviderOption(
        "builds engines for other GPUs too", FLAG, (1, 18), default="0", rounds=True
    ),
    "trt_ep_context_embed_mode": ProviderOption(
        "1 puts the engine into the context model", WholeNumber(0, 1), (1, 17), default="0"
    ),
    "trt_ep_context_file_path": ProviderOption("where the context model is written", _PATH, (1, 17)),
    "trt_external_data_bytestream": ProviderOption("address of external data", _SIZE, (1, 23)),
    "trt_external_data_bytestream_size": ProviderOption("bytes of external data", _SIZE, (1, 23)),
    "trt_extra_plugin_lib_paths": ProviderOption("libraries of TensorRT plugins", _PATH, (1, 15)),
    "trt_force_sequential_engine_build": ProviderOption("builds engines one by one", FLAG, default="0"),
    "trt_force_timing_cache": ProviderOption(
        "uses timings of another GPU of its kind", FLAG, (1, 15), default="0", rounds=True
    ),
    "trt_fp16_enable": ProviderOption(
        "lets layers compute in float16", FLAG, default="0", reduces=_on("fp16")
    ),
    "trt_int8_calibration_table_name": ProviderOption("file of int8 ranges", Text("a file's name")),
    "trt_int8_enable": ProviderOption("lets layers compute in int8", FLAG, default="0", reduces=_on("int8")),
    "trt_int8_use_native_calibration_table": ProviderOption(
        "the ranges are of TensorRT's own form", FLAG, default="0"
    ),
    "trt_layer_norm_fp32_fallback": ProviderOption(
        "keeps normalisation in float32", FLAG, (1, 14), default="0", rounds=True
    ),
    "trt_load_user_initializer": ProviderOption(
        "keeps weights in memory while an engine is built", FLAG, (1, 23), default="0"
    ),
    "trt_max_partition_iterations": ProviderOption("attempts at partitioning", _COUNT),
    "trt_max_workspace_size": ProviderOption("most workspace in bytes", _SIZE, rounds=True),
    "trt_min_subgraph_size": ProviderOption("fewest nodes of a subgraph", _COUNT, default="1"),
    "trt_onnx_bytestream": ProviderOption("address of the model", _SIZE, (1, 20)),
    "trt_onnx_bytestream_size": ProviderOption("bytes of the model", _SIZE, (1, 20)),
    "trt_onnx_model_folder_path": ProviderOption("where the model with weights is", _PATH, (1, 18)),
    "trt_op_types_to_exclude": ProviderOption("operators left to other providers", _NAMES, (1, 20)),
    "trt_preview_features": ProviderOption("preview features of TensorRT", _NAMES, (1, 22), rounds=True),
    "trt_profile_max_shapes": ProviderOption("largest shapes of inputs", _SHAPES, (1, 15), rounds=True),
    "trt_profile_min_shapes": ProviderOption("smallest shapes of inputs", _SHAPES, (1, 15), rounds=True),
    "trt_profile_opt_shapes": ProviderOption("shapes to optimise for", _SHAPES, (1, 15), rounds=True),
    "trt_sparsity_enable": ProviderOption(
        "uses sparse kernels for weights that suit", FLAG, (1, 15), default="0", rounds=True
    ),
    "trt_tactic_sources": ProviderOption("kernel libraries to draw on", _NAMES, (1, 15), rounds=True),
    "trt_timing_cache_enable": ProviderOption(
        "keeps timings of kernels on disk", FLAG, (1, 14), default="0", rounds=True
    ),
    "trt_timing_cache_path": ProviderOption("where timings are kept", _PATH, (1, 16)),
    "trt_weight_stripped_engine_enable": ProviderOption(
        "builds engines without weights", FLAG, (1, 18), default="0"
    ),
    "user_compute_stream": ProviderOption("address of a stream of the caller's", _SIZE),
}

_TENSORRT_RTX = {
    "device_id": ProviderOption("number of the GPU", _INT, (1, 23), default="0"),
    "has_user_compute_stream": ProviderOption("whether a stream is given", FLAG, (1, 23), default="0"),
    "nv_cuda_graph_enable": ProviderOption(
        "captures the launches of a run and replays them", FLAG, (1, 23), default="0", first_touch=True
    ),
    "nv_detailed_build_log": ProviderOption("logs how an engine is built", FLAG, (1, 23), default="0"),
    "nv_dump_subgraphs": ProviderOption("writes its subgraphs as files", FLAG, (1, 23), default="0"),
    "nv_external_data_bytestream": ProviderOption("address of external data", _SIZE, (1, 23)),
    "nv_external_data_bytestream_size": ProviderOption("bytes of external data", _SIZE, (1, 23)),
    "nv_max_shared_mem_size": ProviderOption("most shared memory of a kernel", _SIZE, (1, 23), rounds=True),
    "nv_max_workspace_size": ProviderOption("most workspace in bytes", _SIZE, (1, 23), rounds=True),
    "nv_multi_profile_enable": ProviderOption("several shape profiles", FLAG, (1, 23), default="0"),
    "nv_onnx_bytestream": ProviderOption("address of the model", _SIZE, (1, 23)),
    "nv_onnx_bytestream_size": ProviderOption("bytes of the model", _SIZE, (1, 23)),
    "nv_profile_max_shapes": ProviderOption("largest shapes of inputs", _SHAPES, (1, 23), rounds=True),
    "nv_profile_min_shapes": ProviderOption("smallest shapes of inputs", _SHAPES, (1, 23), rounds=True),
    "nv_profile_opt_shapes": ProviderOption("shapes to optimise for", _SHAPES, (1, 23), rounds=True),
    "nv_runtime_cache_path": ProviderOption("where kernels compiled at run time are kept", _PATH, (1, 23)),
    "user_compute_stream": ProviderOption("address of a stream of the caller's", _SIZE, (1, 23)),
}

_OPENVINO = {
    "cache_dir": ProviderOption("where compiled models are kept", _PATH, (1, 12)),
    "context": ProviderOption("address of an OpenCL context", Text("an address in hexadecimal")),
    "device_id": ProviderOption("earlier form of device_type", ("CPU", "GPU", "NPU")),
    "device_luid": ProviderOption("which of several like devices", _NAMES, (1, 22)),
    "device_type": ProviderOption("where it computes", Text("a device such as CPU, GPU.0 or AUTO:GPU,CPU")),
    "disable_dynamic_shapes": ProviderOption(
        "compiles for each shape it meets", _WORDS, (1, 17), default="false", first_touch=True
    ),
    "enable_causallm": ProviderOption(
        "compiles a language model with its state inside", _WORDS, (1, 22), default="false", rounds=True
    ),
    "enable_dynamic_shapes": ProviderOption("takes dynamic shapes", _WORDS, (1, 14), gone=(1, 24)),
    "enable_npu_fast_compile": ProviderOption("compiles faster for an NPU", _WORDS, gone=(1, 24)),
    "enable_opencl_throttling": ProviderOption(
        "spares the CPU while a GPU computes", _WORDS, default="false"
    ),
    "enable_qdq_optimizer": ProviderOption(
        "drops pairs that quantise and dequantise", _WORDS, (1, 20), default="false", rounds=True
    ),
    "enable_vpu_fast_compile": ProviderOption("compiles faster for a VPU", _WORDS, gone=(1, 24)),
    "export_ep_ctx_blob": ProviderOption("writes a context model", _WORDS, (1, 18), gone=(1, 24)),
    "layout": ProviderOption("axes of inputs and outputs", Text("layouts such as x[NCHW],y[NC]"), (1, 23)),
    "load_config": ProviderOption(
        "properties of OpenVINO itself",
        Text('JSON such as {"CPU": {"NUM_STREAMS": "2"}}'),
        (1, 21),
        rounds=True,
    ),
    "model_priority": ProviderOption(
        "priority among models of a device", ("LOW", "MEDIUM", "HIGH", "DEFAULT"), (1, 20), default="DEFAULT"
    ),
    "num_of_threads": ProviderOption("threads on the CPU", _COUNT, rounds=True),
    "num_streams": ProviderOption("runs at one time", _COUNT, (1, 15), default="1", rounds=True),
    "precision": ProviderOption(
        "what it computes in",
        ("FP32", "FP16", "ACCURACY"),
        (1, 17),
        # Unset, it takes what the device does fastest: bfloat16 on CPUs that have it, float16 on GPUs.
        reduces={"": "bf16", "FP16": "fp16"},
    ),
    "reshape_input": ProviderOption("bounds of inputs' shapes", Text("bounds such as x[1,1..8]"), (1, 22)),
}

_WEBGPU = {
    "adapterIndex": ProviderOption("number of the adapter", _INT, (1, 28)),
    "dawnBackendType": ProviderOption("graphics interface below it", ("D3D12", "Vulkan"), (1, 20)),
    "dawnProcTable": ProviderOption("address of a table of functions", _SIZE, (1, 20)),
    "defaultBufferCacheMode": ProviderOption("how other buffers are kept", _CACHE_MODES, (1, 20)),
    "deviceId": ProviderOption("number of the context", _INT, (1, 20), default="0"),
    "enableGraphCapture": ProviderOption(
        "captures the commands of a run and replays them", _BIT, (1, 20), default="0", first_touch=True
    ),
    "enableInt64": ProviderOption("computes int64 itself", _BIT, (1, 24), default="0"),
    "enableMatmulFp32Accumulation": ProviderOption(
        "sums products of float16 in float32", _BIT, (1, 28), rounds=True
    ),
    "enablePIXCapture": ProviderOption("captures runs for a debugger", _BIT, (1, 21), default="0"),
    "enableRobustness": ProviderOption("checks bounds in shaders", _BIT, (1, 28)),
    "forceCpuNodeNames": ProviderOption("nodes left to the CPU", Text("names, one a line"), (1, 20)),
    "kvCacheQuantizationBits": ProviderOption(
        "keeps attention's cache quantised",
        ("0", "4", "8"),
        (1, 28),
        default="0",
        reduces={"4": "int8", "8": "int8"},
    ),
    "maxNumPendingDispatches": ProviderOption("most work waiting at a time", WholeNumber(1, 4096), (1, 28)),
    "maxStorageBufferBindingSize": ProviderOption("largest binding in bytes", _SIZE, (1, 24)),
    "maxStorageBuffersPerShaderStage": ProviderOption("most buffers of a shader", _INT, (1, 28)),
    "multiRotaryCacheConcatOffset": ProviderOption("offset within a rotary cache", _INT, (1, 27)),
    "powerPreference": ProviderOption("which adapter", ("high-performance", "low-power"), (1, 22)),
    "preferredLayout": ProviderOption(
        "layout it computes in", ("NCHW", "NHWC"), (1, 20), default="NHWC", rounds=True
    ),
    "preserveDevice": ProviderOption("keeps the device after the last session", _BIT, (1, 23), default="0"),
    "queryResolveBufferCacheMode": ProviderOption("how buffers of queries are kept", _CACHE_MODES, (1, 20)),
    "sessionBufferPoolGenerations": ProviderOption("generations of pooled buffers", _INT, (1, 28)),
    "storageBufferCacheMode": ProviderOption("how buffers of data are kept", _CACHE_MODES, (1, 20)),
    "uniformBufferCacheMode": ProviderOption("how buffers of parameters are kept", _CACHE_MODES, (1, 20)),
    "validationMode": ProviderOption("what is checked", ("disabled", "wgpuOnly", "basic", "full"), (1, 20)),
    "webgpuDevice": ProviderOption("address of a device of the caller's", _SIZE, (1, 20)),
    "webgpuInstance": ProviderOption("address of an instance of the caller's", _SIZE, (1, 20)),
    "weightLoadAcceleration": ProviderOption(
        "faster loading of weights", ("off", "preferred", "required"), (1, 28)
    ),
}

_DIRECTML = {
    "device_filter": ProviderOption("kinds of device", ("gpu", "npu", "any"), (1, 17)),
    "device_id": ProviderOption("number of the adapter", _INT, default="0"),
    "disable_metacommands": ProviderOption(
        "leaves out kernels of the driver's", _WORDS, (1, 13), default="false", rounds=True
    ),
    "enable_dynamic_graph_fusion": ProviderOption(
        "fuses again for shapes it meets", _WORDS, (1, 16), gone=(1, 18), first_touch=True
    ),
    "enable_graph_capture": ProviderOption(
        "captures the commands of a run and replays them", _WORDS, (1, 17), default="false", first_touch=True
    ),
    "enable_graph_serialization": ProviderOption(
        "writes its graphs as files", _WORDS, (1, 18), default="false"
    ),
    "performance_preference": ProviderOption(
        "which adapter", ("default", "high_performance", "minimum_power"), (1, 17), default="default"
    ),
}

_COREML = {
    "AllowLowPrecisionAccumulationOnGPU": ProviderOption(
        "sums in float16 on a GPU", _BIT, (1, 20), default="0", reduces={"1": "fp16"}
    ),
    "EnableOnSubgraphs": ProviderOption("takes nodes inside branches and loops", _BIT, (1, 20), default="0"),
    "MLComputeUnits": ProviderOption(
        "where it computes", ("ALL", "CPUOnly", "CPUAndGPU", "CPUAndNeuralEngine"), (1, 20), default="ALL"
    ),
    "ModelCacheDirectory": ProviderOption("where compiled models are kept", _PATH, (1, 21)),
    "ModelFormat": ProviderOption(
        "form of the model it makes; NeuralNetwork leaves the precision to the device",
        ("MLProgram", "NeuralNetwork"),
        (1, 20),
        default="NeuralNetwork",
        reduces={"NeuralNetwork": "fp16"},
    ),
    "ProfileComputePlan": ProviderOption("logs where operators go", _BIT, (1, 20), default="0"),
    "RequireStaticInputShapes": ProviderOption("leaves dynamic shapes to others", _BIT, (1, 20), default="0"),
    "SpecializationStrategy": ProviderOption(
        "effort spent on a model", ("Default", "FastPrediction"), (1, 20), default="Default", first_touch=True
    ),
}

_MIGRAPHX = {
    "device_id": ProviderOption("number of the GPU", _INT, default="0"),
    "migraphx_arena_extend_strategy": ProviderOption("how its memory arena grows", _ARENA, (1, 23)),
    "migraphx_bf16_enable": ProviderOption(
        "computes in bfloat16", FLAG, (1, 23), default="0", reduces=_on("bf16")
    ),
    "migraphx_exhaustive_tune": ProviderOption(
        "tunes kernels at length", FLAG, (1, 18), default="0", rounds=True, first_touch=True
    ),
    "migraphx_external_alloc": ProviderOption("address of an allocator", _SIZE, (1, 23)),
    "migraphx_external_empty_cache": ProviderOption("address of an allocator's flush", _SIZE, (1, 23)),
    "migraphx_external_free": ProviderOption("address of an allocator's free", _SIZE, (1, 23)),
    "migraphx_fp16_enable": ProviderOption("computes in float16", FLAG, default="0", reduces=_on("fp16")),
    "migraphx_fp8_enable": ProviderOption(
        "computes in float8", FLAG, (1, 21), default="0", reduces=_on("fp8")
    ),
    "migraphx_int8_calibration_table_name": ProviderOption(
        "file of int8 ranges", Text("a file's name"), (1, 18)
    ),
    "migraphx_int8_enable": ProviderOption("computes in int8", FLAG, default="0", reduces=_on("int8")),
    "migraphx_int8_use_native_calibration_table": ProviderOption(
        "form of the ranges", FLAG, (1, 18), default="0"
    ),
    "migraphx_load_compiled_model": ProviderOption("loads a compiled model", FLAG, (1, 18), gone=(1, 24)),
    "migraphx_load_model_path": ProviderOption("where it is loaded from", _PATH, (1, 18), gone=(1, 24)),
    "migraphx_max_compiled_models": ProviderOption("most batch sizes compiled", _COUNT, (1, 25)),
    "migraphx_max_dynamic_batch": ProviderOption("largest batch", _INT, (1, 25)),
    "migraphx_mem_limit": ProviderOption("limit of its memory arena in bytes", _SIZE, (1, 21)),
    "migraphx_model_cache_dir": ProviderOption("where compiled models are kept", _PATH, (1, 23)),
    "migraphx_save_compiled_model": ProviderOption("keeps the compiled model", FLAG, (1, 18), gone=(1, 24)),
    "migraphx_save_model_path": ProviderOption("where it is kept", _PATH, (1, 18), gone=(1, 24)),
}

FAMILIES: Mapping[str, Mapping[str, ProviderOption]] = {
    # What the CPU takes are options of the session; it ignores whatever is given here.
    CPU: {},
    CUDA: _CUDA,
    TENSORRT: _TENSORRT,
    TENSORRT_RTX: _TENSORRT_RTX,
    OPENVINO: _OPENVINO,
    WEBGPU: _WEBGPU,
    DIRECTML: _DIRECTML,
    COREML: _COREML,
    MIGRAPHX: _MIGRAPHX,
}

# Families that read their options from session config entries alone where they are built in, under a prefix;
# whatever is given beside the provider's name they ignore without a word.
READS_CONFIG = frozenset({WEBGPU})

# What a family computes in, below the graph's own precision, whatever its options say.
ALWAYS_REDUCES: Mapping[str, frozenset[str]] = {
    TENSORRT: frozenset({"tf32"}),
    TENSORRT_RTX: frozenset({"tf32"}),
}
