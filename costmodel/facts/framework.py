"""Behaviour of a framework release on a device: kernels, copies, and the data that it saves, stores and sends."""

from __future__ import annotations

from dataclasses import field, fields
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from costmodel.facts.fields import Architecture, Count, CountOrZero, Flag, Fraction, NotNegative, Positive
from costmodel.record import replace, strict_record
from costmodel.strategy import DECISIONS, DEGREES, ENUMS, decision_text


@strict_record(frozen=True, kw_only=True, slots=True)
class Kernels:
    """
    Kernels that the code of a framework launches, and the bytes that they read and write.

    Parameters
    ----------
    gradient_accumulation_fusion
        True if the matmul of a weight's gradient adds it to those of earlier micro-batches, in their precision
        (Megatron-LM's argument of that name); otherwise it writes 16 bits.
    attention_kernels
        ``native`` to the device; ``mma``: written before warp-group instructions, which later devices run slower.
    attention_fraction
        Rate of these attention kernels, as a fraction of the device's best kernels of that kind.
    causal_attention
        True if the kernel skips the masked half of the scores.
    fused_attention
        True if scores stay inside one kernel (FlashAttention); otherwise all of them pass through device memory.
    fp8_attention
        True if attention multiplies in 8 bits where the recipe's linears do so, or in 4.
    fused_kernels
        True if norms, rotations and gated activations are one kernel each, hand-written or compiled.
    fused_norms
        True if norms and rotations are one kernel each whatever the other functions are (FlashAttention's in Triton).
    permuted_heads
        True if queries, keys and values are permuted, and keys and values joined and permuted again, in front of the
        attention core, which takes their lengths from a mask (nanotron).
    torch_functions
        True if norms, rotations, activations, routing and loss are PyTorch's functions, kernel by kernel; operator
        samples are of those.
    fused_projections
        True if queries, keys and values are one matmul, and a feed-forward's gate and up projection another one.
    fuses_experts_in_graphs
        True if one CUDA graph of the whole iteration comes with fused experts for the MXFP8 recipe (Megatron-Bridge's
        recipes from 26.06 on). The first grouped matmul's kernel then activates its result and casts it for the second
        one. In the backward pass the second one's kernel does so with the gradient. The first one's biases are added
        inside.
    fused_squared_relu_experts
        True if the square of ReLU of routed experts and the router's scores are one kernel.
    batch_first
        True if sequences come before tokens in a tensor, so that sequence-parallel ranks gather and scatter slices of
        each sequence. PyTorch's functional collectives copy the whole tensor into or out of the order of ranks
        (``torch/distributed/_functional_collectives.py``: ``torch.cat(torch.chunk(...))``).
    loss_forward_bytes, loss_backward_bytes
        Bytes per logit that the loss's kernels read and write in either pass.
    recompute_stops_early
        True if full recomputation ends with the last tensor that the backward pass needs (PyTorch's non-reentrant
        checkpoints since 2.1). A feed-forward's last matmul and the work after it are not repeated.
    pads_vocabulary
        True if a vocabulary that no tensor-parallel ranks share is padded to the multiple of Tensor Cores (Megatron-LM,
        ``make_vocab_size_divisible_by``); otherwise its logits take longer.
    vocabulary_multiple
        Number to whose multiples a tensor-parallel rank's share of the vocabulary is padded (Megatron-LM: 128).
    """

    gradient_accumulation_fusion: bool = True
    attention_kernels: Literal["native", "mma"] = "native"
    attention_fraction: Annotated[Fraction, Field(gt=0)] = 1.0
    causal_attention: bool = True
    fused_attention: bool = True
    fp8_attention: bool = False
    fused_kernels: bool = True
    fused_norms: bool = False
    permuted_heads: bool = False
    torch_functions: bool = False
    fused_projections: bool = True
    fuses_experts_in_graphs: bool = False
    fused_squared_relu_experts: bool = False
    batch_first: bool = False
    loss_forward_bytes: NotNegative = 38.0
    loss_backward_bytes: NotNegative = 14.0
    recompute_stops_early: bool = False
    pads_vocabulary: bool = True
    vocabulary_multiple: Count = 1


ContextCommunication: TypeAlias = Literal["p2p", "all_gather", "a2a", "a2a+p2p"]
"""Context-parallel communication by Megatron-LM's names (``--cp-comm-type``)."""


@strict_record(frozen=True, kw_only=True, slots=True)
class CommunicationStyle:
    """
    Communication inside layers and between pipeline ranks, as the code of a framework does it.

    Parameters
    ----------
    tp_overlaps_single_matmuls
        True if tensor-parallel communication overlaps only with the one matmul that it feeds or that feeds it
        (PyTorch, ``_inductor/fx_passes/micro_pipeline_tp.py``).
    async_tp_allreduce
        True if the backward pass of a column-parallel linear hides its communication (Megatron-LM since 2022,
        ``LinearWithGradAccumulationAndAsyncCommunication``). The input's gradients are summed over the tensor-parallel
        ranks while the weight's gradients are computed; the input is gathered again while its own gradients are.
        Applies if tensor-parallel communication does not overlap otherwise.
    tp_overlap_splits
        Number of pieces into which an overlapped tensor-parallel collective is split, n in equation (20).
    scatter_gather_p2p
        True if each tensor-parallel rank without sequence parallelism sends a share of a tensor to the next pipeline
        rank, where it is gathered again (Narayanan et al., arXiv:2104.04473, section 4.1).
    shared_expert_overlap
        True if shared experts overlap with the token dispatch.
    communication_sms
        Number of processors (SMs) that kernels of a token dispatcher take; None: as many as other collectives.
    cp_comm_type, cp_a2a_ranks
        As in :class:`Settings`; None: a ring, whose output ``context_output`` may keep twice.
    """

    tp_overlaps_single_matmuls: bool = False
    async_tp_allreduce: bool = False
    tp_overlap_splits: Count = 4
    scatter_gather_p2p: bool = False
    shared_expert_overlap: bool = False
    communication_sms: Count | None = None
    cp_comm_type: ContextCommunication | None = None
    cp_a2a_ranks: Count | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class CommunicationLibrary:
    """
    The collective communication library of a framework, and the paths that it builds.

    Parameters
    ----------
    name
        Name and version of the library.
    cross_socket_rings
        True if a ring of some of a host's devices enters and leaves by one network adapter, through the host's
        processors (NCCL before 2.12. Since then it reaches the adapter over NVLink).

    References
    ----------
    NCCL, release notes of 2.12 (PXN).
    """

    name: str = "NCCL 2.12"
    cross_socket_rings: bool = False


OptimizerName: TypeAlias = Annotated[
    Literal["adam", "muon", "dist_muon"],
    "AdamW is priced as adam, MuonClip as muon, any other as adam, with two moments of each parameter: give adam.",
]
MuonMode: TypeAlias = Literal["blockwise", "duplicated", "distributed", "layer_sharded"]


@strict_record(frozen=True, kw_only=True, slots=True)
class OptimizerStyle:
    """
    Sharding of optimizer states, gradients and weights over data-parallel ranks, as the code of a framework does it.

    Parameters
    ----------
    gradient_sync
        Collective that reduces gradients for sharded optimizer states (ZeRO-1): ``reduce_scatter``, each rank gets its
        shard; ``all_reduce``, each rank gets all of them.
    gradient_sync_overlaps
        True if ZeRO-1's gradients are reduced during the backward pass where data-parallel communication overlaps.
    weight_sync
        Collective that returns updated weights: ``all_gather``; or ``broadcast``, in which each owner sends its tensors
        to all others.
    weight_sync_overlaps
        True if the weights return during the next forward pass where data-parallel communication overlaps.
    sliced_tensors
        Number of a layer's tensors whose slices are copied one by one when ranks that share optimizer states (ZeRO-1)
        gather the weights; 0: the gathered buffer holds the weights.
    sharding_copies
        Copies that a device makes if weights are sharded (ZeRO-3): ``none``, ``flat`` or ``tensors``. With ``flat``
        it copies gradients into one flat tensor per layer (PyTorch's first FSDP, whose weights are views of it). With
        ``tensors`` it also copies gathered weights out of the ranks' order (FSDP2: ``all_gather_copy_out``,
        ``reduce_scatter_copy_in``).
    sharding_ranks
        Largest number of data-parallel ranks that share states (ZeRO within a node); None: all.
    bucket_parameters, bucket_parameters_per_rank
        Parameters of a bucket of data-parallel communication: the larger of the first, and the second times the ranks
        of the group (Megatron-LM, ``megatron/core/distributed/distributed_data_parallel.py``, default ``bucket_size``).
    optimizer_bytes_per_parameter
        Bytes of device memory traffic for one parameter's update by Adam, the norm of its gradient and clipping
        included.
    is_muon
        True if Muon updates the matrices of layers, and Adam everything else.
    muon_gradient_sync
        As ``gradient_sync``, with Muon.
    muon_takes_shards
        True if Muon runs where gradients are sharded too (ZeRO-2, ZeRO-3, FSDP).
    muon_tp_mode, muon_num_ns_steps
        Entries of :class:`Settings`.
    """

    gradient_sync: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    gradient_sync_overlaps: bool = True
    weight_sync: Literal["all_gather", "broadcast"] = "all_gather"
    weight_sync_overlaps: bool = True
    sliced_tensors: CountOrZero = 0
    sharding_copies: Literal["none", "flat", "tensors"] = "none"
    sharding_ranks: Count | None = None
    bucket_parameters: Positive = 40e6
    bucket_parameters_per_rank: NotNegative = 1e6
    optimizer_bytes_per_parameter: NotNegative = 30.0
    is_muon: bool = False
    muon_gradient_sync: Literal["reduce_scatter", "all_reduce"] = "reduce_scatter"
    muon_takes_shards: bool = False
    muon_tp_mode: MuonMode = "blockwise"
    muon_num_ns_steps: Count = 5


@strict_record(frozen=True, kw_only=True, slots=True)
class OptimizerOffload:
    """
    Update of parameters whose optimizer states live in host memory, as the code of a framework does it.

    Parameters
    ----------
    host_update_bytes
        Bytes of host memory traffic for one parameter's update. PyTorch's AdamW, a kernel per operation
        (``torch/optim/adam.py``, ``_single_tensor_adam``), takes 80 bytes. Decay has 8, the mean 12, the mean of
        squares 8 and 12, root, quotient and sum 8 each, the weight 16. In one pass (DeepSpeed's ``cpu_adam``) it is 28.
    host_transfer_bytes
        Bytes of a gradient that goes to the host, and of a weight that comes back, each in its direction of the port.
    offloaded_states
        Fraction of the parameters whose optimizer states are in host memory.
    offloaded_masters
        True if the FP32 weights leave the device with the moments; otherwise the host has a copy of them.
    offload_overlap
        True if the host updates some tensors while gradients and weights of others are transferred.
    host_threads
        Number of threads of each device's process for the update; None: the device's share of the cores.
    """

    host_update_bytes: NotNegative = 80.0
    host_transfer_bytes: NotNegative = 4.0
    offloaded_states: Fraction = 1.0
    offloaded_masters: bool = True
    offload_overlap: bool = False
    host_threads: Count | None = None


@strict_record(frozen=True, kw_only=True, slots=True)
class HostStyle:
    """
    Points at which the host waits for the device.

    Parameters
    ----------
    blocking_collectives
        True if the host waits for each collective of a layer, as under a profiler that times them one by one.
    launch_blocking
        True if the host waits for each kernel before it launches the next one (``CUDA_LAUNCH_BLOCKING=1``).
    """

    blocking_collectives: bool = False
    launch_blocking: bool = False


@strict_record(frozen=True, kw_only=True, slots=True)
class MemoryModel:
    """
    Device memory that the software takes for the backward pass and for buffers, beyond the fewest tensors.

    Parameters
    ----------
    attention_score_bytes
        Bytes kept per score of an attention of several kernels; 0: flash attention.
    dropout_mask_bytes
        Bytes of the dropout mask per element that attention and feed-forward add to the residual stream; 0: no dropout.
    logit_bytes
        Bytes alive per logit while the loss is computed: fp32 copies, softmax, gradients.
    eager_logit_bytes
        As ``logit_bytes``, with eager kernels; None: as many.
    shared_logit_bytes
        As ``logit_bytes``, if tensor-parallel ranks share the vocabulary; None: as many.
    context_output
        True if context parallelism keeps the attention's output in two layouts (all-to-all instead of a ring).
    gathered_inputs
        True if column-parallel matmuls keep the gathered sequence; otherwise it is gathered again in the backward pass.
    expert_output
        True if the router's scores weight the experts' output, which is kept for it; otherwise their inner activation.
    weight_gradient_bytes
        Bytes per parameter of one weight of each shape, for gradients that are held but not read.
    workspace_bytes
        Bytes that matmul libraries take from the framework's allocator.
    unfused_kernels
        True if norms and gated activations are several kernels each, which keep their intermediate results.
    follows_the_backward_pass
        True if the peak is sought along the backward pass: first the loss, then the layer at work with its gradients.
        Otherwise the loss and the recomputed layer both count, and gradients of activations do not.
    whole_in_pipelines
        True if ranks of a pipeline keep weights gathered and gradients whole, whatever the sharding.
    loss_chunks
        Parts of a micro-batch whose logits exist one after the other.
    fragmentation
        Memory that the allocator reserves beyond the allocated bytes, as a fraction of them.
    allocator
        Growth of PyTorch's allocator: ``segments`` of fixed sizes, or ``expandable`` ones
        (``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``).
    expandable_fragmentation
        Value of ``fragmentation`` if a job asks for expandable segments.
    offloaded_fraction
        Fraction of the layers whose activations are in host memory, if activations are offloaded.
    offload_keeps_inputs
        True if the inputs of offloaded layers stay in device memory (MoFa, equation (33)).
    working_layers
        Number of layers whose activations are in device memory while the others are offloaded or recomputed.
    embedding_buffers
        Number of extra 16-bit copies of the embedding that the framework keeps on its rank.
    """

    attention_score_bytes: NotNegative = 0.0
    dropout_mask_bytes: NotNegative = 0.0
    logit_bytes: Positive = 4.0
    eager_logit_bytes: Positive | None = None
    shared_logit_bytes: Positive | None = None
    context_output: bool = False
    gathered_inputs: bool = False
    expert_output: bool = True
    weight_gradient_bytes: NotNegative = 0.0
    workspace_bytes: NotNegative = 0.0
    unfused_kernels: bool = False
    follows_the_backward_pass: bool = False
    whole_in_pipelines: bool = False
    loss_chunks: Count = 1
    fragmentation: NotNegative = 0.0
    allocator: Literal["segments", "expandable"] = "segments"
    expandable_fragmentation: NotNegative = 0.0
    offloaded_fraction: Fraction = 1.0
    offload_keeps_inputs: bool = True
    working_layers: NotNegative = 1.0
    embedding_buffers: NotNegative = 0.0


@strict_record(frozen=True, kw_only=True, slots=True)
class Behaviour:
    """
    Behaviour of a framework's code, as far as it changes times or memory.

    Parameters
    ----------
    kernels, communication, library, optimizer, offload, host, memory
        Behaviour by subject.
    """

    kernels: Kernels = field(default_factory=Kernels)
    communication: CommunicationStyle = field(default_factory=CommunicationStyle)
    library: CommunicationLibrary = field(default_factory=CommunicationLibrary)
    optimizer: OptimizerStyle = field(default_factory=OptimizerStyle)
    offload: OptimizerOffload = field(default_factory=OptimizerOffload)
    host: HostStyle = field(default_factory=HostStyle)
    memory: MemoryModel = field(default_factory=MemoryModel)


StoredDtype: TypeAlias = Literal["fp32", "bf16", "fp16", "bf16+fp32"]


@strict_record(frozen=True, kw_only=True, slots=True)
class Settings:
    """
    Settings of a framework besides the strategy; None: the recipe's default.

    Parameters
    ----------
    gradient_dtype
        Dtype of the gradients as accumulated and reduced (Megatron-LM: ``fp32`` with
        ``--accumulate-allreduce-grads-in-fp32``); ``bf16+fp32``: added up in FP32, next to 16-bit ones (DeepSpeed's
        ``BF16_Optimizer``).
    weight_dtype
        Dtype of the weights that ranks hold: ``fp32`` if shards of them are cast before they are gathered (FSDP).
        ``bf16`` if weights and the optimizer's two moments are 16-bit, and no other copy is kept.
    moments_dtype
        Dtype of Adam's two moments (Megatron-LM: ``--exp-avg-dtype``, ``--exp-avg-sq-dtype``).
    fp8_param_gather
        True if 8-bit recipes hold and gather weights in 8 bits only (Megatron-LM: ``--fp8-param-gather``).
    first_layers_bf16, last_layers_bf16
        Number of layers at the start and at the end of the model that compute in 16 bits though the recipe has fewer
        (Megatron-LM: ``--first-last-layers-bf16``, ``--num-layers-at-start-in-bf16``). Layers of multi-token prediction
        never do.
    fp8_attention
        True if attention of the other layers multiplies in 8 bits (Transformer Engine: ``fp8_dpa``; Megatron-Bridge:
        ``fp8_dot_product_attention``).
    mtp_layers
        Number of layers of multi-token prediction that are trained; None: as the model has.
    shared_expert_overlap
        True if shared experts overlap with the token dispatch (Megatron-LM: ``--moe-shared-expert-overlap``).
    delay_wgrad
        True if weight gradients wait so that expert-parallel communication is hidden by them (Megatron-LM:
        ``--delay-wgrad-compute``). Measured: 0.4 % of a step (Qwen3-30B on 16 H100); the cost model always assumes it.
    communication_sms
        Number of processors (SMs) that a dispatcher's own kernels take, at most those of the device; None: as
        many as other collectives.
    cp_comm_type
        Communication of context-parallel ranks (Megatron-LM: ``--cp-comm-type``). ``p2p``: keys and values go round in
        a ring, overlapped with attention. ``all_gather``: they are gathered before it. ``a2a``: all-to-alls exchange
        tokens for heads before and after it (Ulysses). ``a2a+p2p``: all-to-alls of near ranks, a ring of those groups.
    cp_a2a_ranks
        Number of near ranks in the all-to-alls of ``a2a+p2p``, the first of Megatron-LM's
        ``--hierarchical-context-parallel-sizes``; None: 2.
    offloaded_layers
        Number of the model's layers whose activations are offloaded, if activations are (Megatron-LM:
        ``--cpu-offloading-num-layers``); None: all.
    offloaded_states
        Fraction of the optimizer states that are offloaded, if they are (Megatron-LM:
        ``--optimizer-offload-fraction``); None: all.
    offloaded_masters
        True if FP32 weights are offloaded with the moments (Megatron-LM: ``--use-precision-aware-optimizer``, without
        which the distributed optimizer keeps its own on the device); None: they are.
    offload_overlap
        True if the host updates some tensors while others are transferred (Megatron-LM:
        ``--overlap-cpu-optimizer-d2h-h2d``).
    host_threads
        Number of host threads of each device's process (``OMP_NUM_THREADS``, which torchrun sets to 1 if it is not
        given); None: the device's share of the cores.
    optimizer_group
        Number of data-parallel ranks that share optimizer states; ``all``: all of them.
    optimizer
        Optimizer: ``adam``; or ``muon``, which keeps one moment of a layer's matrices and orthogonalizes it by
        Newton-Schulz steps, with Adam for embedding, head, norms and biases. ``sharding`` places it: with ``none``
        every replica updates all matrices (Megatron-LM: ``--optimizer muon``), with ``optimizer`` each matrix belongs
        to one replica (``--optimizer dist_muon``). ``dist_muon`` is Muon with the second placement only.
    muon_tp_mode
        Newton-Schulz steps of a matrix that several ranks share (Megatron-LM: ``--muon-tp-mode``). ``blockwise``: each
        rank takes its block for a matrix. ``duplicated``: all ranks gather and orthogonalize the whole matrix.
        ``distributed``: they sum its products. ``layer_sharded``: each matrix is sent to one of them, and back.
    muon_num_ns_steps
        Number of Newton-Schulz steps (Megatron-LM: ``--muon-num-ns-steps``); None: 5.
    kernels
        Kernels: ``fused``, with norms, rotations and gated activations as one kernel each, hand-written or compiled;
        ``eager``, with several kernels each.
    attention
        Attention: ``flash``, with scores inside one kernel; ``unfused``, with scores in device memory.
    loss
        Loss: ``fused`` is Transformer Engine's cross-entropy, which writes the gradient over 16-bit logits
        (Megatron-LM: ``--cross-entropy-loss-fusion`` with ``--cross-entropy-fusion-impl te``). ``compiled`` is
        PyTorch's, compiled, with eager layers: 16-bit logits and their gradient (torchtitan: ``compile.components``).
        ``unfused`` is any other loss: the recipe's own, or Megatron-LM's loss in FP32 if the recipe's is the fused one.
    loss_chunks
        Parts of a micro-batch whose logits exist one after the other; 1: all at once. torchtitan:
        ``ChunkedLossWrapper.num_chunks``. Liger's fused linear cross-entropy has as many as the vocabulary over the
        hidden size.
    allocator
        Growth of PyTorch's allocator: ``segments`` of fixed sizes, or ``expandable`` ones
        (``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``), which leave fewer fragments.
    launches
        Kernel launches: ``blocking``, the host waits for each kernel (``CUDA_LAUNCH_BLOCKING=1``); or ``asynchronous``.
    composition
        Measured unit: ``step``, a training step; ``parts``, a sum of layers that a profiler timed alone.
    """

    gradient_dtype: StoredDtype | None = None
    weight_dtype: Literal["recipe", "fp32", "bf16"] | None = None
    moments_dtype: Literal["fp32", "bf16"] | None = None
    fp8_param_gather: Flag | None = None
    first_layers_bf16: CountOrZero | None = None
    last_layers_bf16: CountOrZero | None = None
    fp8_attention: Flag | None = None
    mtp_layers: CountOrZero | None = None
    shared_expert_overlap: Flag | None = None
    delay_wgrad: Flag | None = None
    communication_sms: Count | None = None
    cp_comm_type: ContextCommunication | None = None
    cp_a2a_ranks: Count | None = None
    offloaded_layers: Count | None = None
    offloaded_states: Fraction | None = None
    offloaded_masters: Flag | None = None
    offload_overlap: Flag | None = None
    host_threads: Count | None = None
    optimizer_group: Count | Literal["all"] | None = None
    optimizer: OptimizerName | None = None
    muon_tp_mode: MuonMode | None = None
    muon_num_ns_steps: Count | None = None
    kernels: Literal["fused", "eager"] | None = None
    attention: Literal["flash", "unfused"] | None = None
    loss: Literal["fused", "compiled", "unfused"] | None = None
    loss_chunks: Count | None = None
    allocator: Literal["segments", "expandable"] | None = None
    launches: Literal["asynchronous", "blocking"] | None = None
    composition: Literal["step", "parts"] | None = None

    def fill_from(self, defaults: Settings) -> Settings:
        """Return these settings, with the defaults for entries that are None."""
        own = {one.name: getattr(self, one.name) for one in fields(self)}
        return replace(defaults, **{name: value for name, value in own.items() if value is not None})


@strict_record(frozen=True, kw_only=True)
class Framework:
    """
    One release of a training framework.

    Parameters
    ----------
    name
        Name of the stack and its release in the catalog.
    description
        Description of the release and its particularities.
    releases
        Names of other releases that are costed as this one, for lack of other facts.
    since
        Month of the release, or of its first run.
    architectures
        Architectures that the release runs on; empty: all.
    measured_on
        Architectures on which runs of it, or of a release with the same kernels, were measured. On others its constants
        are those of the architecture, which is an extrapolation.
    is_default
        True if a job without a framework gets it; of several such releases, the newest.
    targets
        Targets of ``planner export`` that write its configuration: its own first, then others that take its plans.
    behaviour
        Behaviour of its code.
    features
        Values of a decision that the release supports; it supports all values of decisions that are not listed.
        ``modules`` are all sets of modules, ``many`` all degrees above 1.
    setting_values
        Values that users of the release can choose for a setting; nothing is known of settings that are not listed.
        For a number with several values, those between are allowed as well.
    settings
        Settings of its recipes.
    settings_by_precision
        Settings of its recipes for one precision, if they differ.
    precision
        Precision recipe of runs that do not name theirs.
    strategy
        Decisions that its recipes make unless told otherwise.
    strategy_by_precision
        Decisions of its recipes for one precision, if they differ.
    stages
        Layer counts of pipeline stages that do not divide the layers: ``even``, as the planner; ``filled``, one stage
        after the other (Megatron-Bridge); ``modules``, embedding and head counted as modules (DeepSpeed).
    whole_experts
        True if experts are not split over tensor-parallel ranks by default.
    shards_in_pipelines
        True if it also shards gradients and weights (ZeRO-2, ZeRO-3, FSDP) of pipeline stages.
    sharded_gradients_may_wait
        True if communication of sharded gradients overlaps only on request.
    overlaps_whole_gradients
        True if gradients without sharding can be reduced during the backward pass.
    recompute_if_needed
        Recomputation of its recipes if none is given and a strategy without recomputation would not fit.
    kernels_of
        Entry whose fitted factors apply to this release; None: its own.
    factors
        Factors on constants of the device's calibration, by name; ``name@architecture`` on that architecture only.
    sources
        Source of each entry.
    """

    name: str
    description: str = ""
    releases: tuple[str, ...] = ()
    since: str = ""
    architectures: tuple[Architecture, ...] = ()
    measured_on: tuple[Architecture, ...] = ()
    is_default: bool = False
    targets: tuple[str, ...] = ()
    behaviour: Behaviour = field(default_factory=Behaviour)
    features: dict[str, tuple[str, ...]] = field(default_factory=dict)
    setting_values: dict[str, tuple[bool | float | str, ...]] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    settings_by_precision: dict[str, Settings] = field(default_factory=dict)
    precision: str = "bf16"
    strategy: dict[str, bool | int | str] = field(default_factory=dict)
    strategy_by_precision: dict[str, dict[str, bool | int | str]] = field(default_factory=dict)
    stages: Literal["even", "filled", "modules"] = "even"
    whole_experts: bool = False
    shards_in_pipelines: bool = False
    sharded_gradients_may_wait: bool = False
    overlaps_whole_gradients: bool = False
    recompute_if_needed: str | None = None
    kernels_of: str | None = None
    factors: dict[str, Positive] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)


MODULES = "modules"

"""Entry for decisions whose value is a set of modules: the framework supports every set."""

MANY = "many"

"""Entry for degrees: the framework supports every degree above 1."""


@cache
def feature_of(name: str, value: int) -> str:
    """
    Return the spelling of a decision's value in the entries of frameworks.

    >>> feature_of("schedule", 0), feature_of("recompute", 8), feature_of("tp_overlap", 1), feature_of("cp", 4)
    ('1f1b', 'modules', 'true', 'many')
    """
    if name in DEGREES and value > 1:
        return MANY
    text = decision_text(name, value)
    is_set = name in ENUMS and text not in {member.text for member in ENUMS[name]}
    return MODULES if is_set else text


def lacks(framework: Framework, name: str, value: int) -> bool:
    """
    Return True if a framework lacks a value of a decision; it has every value of a decision that it does not list.

    An entry lists sets of modules as ``modules``, which means all of them, or one by one.
    """
    having = framework.features.get(name)
    if having is None or name not in DECISIONS:
        return False
    return feature_of(name, value) not in having and decision_text(name, value) not in having


def lists(framework: Framework | None, name: str) -> bool:
    """Return True if a framework's entry lists its values of a decision."""
    return framework is not None and name in framework.features


def has_values(framework: Framework | None, name: str, values: Any) -> NDArray[np.bool_]:
    """Return a mask of the values, in an array of a decision's values, that a framework has."""
    if framework is None or not lists(framework, name):
        return np.ones(np.shape(values), dtype=bool)
    if not np.ndim(values):
        return np.asarray(not lacks(framework, name, int(values)))
    unique, where = np.unique(np.asarray(values), return_inverse=True)
    known = np.array([not lacks(framework, name, int(value)) for value in unique], dtype=bool)
    return known[where].reshape(np.shape(values))
