"""The words that the static read goes by: what a source may import, call and reach for."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MODULES = _words("""
    __future__ abc bisect collections collections.abc contextlib copy dataclasses enum functools itertools logging
    math numbers operator string textwrap typing warnings
    torch torch.amp torch.autograd torch.autograd.function torch.compiler torch.cuda torch.func torch.library
    torch.nn torch.nn.functional
    triton triton.experimental triton.experimental.gluon triton.experimental.gluon.language
    triton.experimental.gluon.language.nvidia.hopper triton.experimental.gluon.nvidia.hopper triton.language
    triton.language.extra triton.language.extra.cuda triton.language.extra.cuda.libdevice
    triton.language.extra.libdevice triton.language.math triton.runtime triton.tools.tensor_descriptor
""")
"""What kernels are written with: no way to files, processes or other names than those that are read here."""
LIBRARY_MODULES = MODULES | {"liger_kernel", "torch.nn.attention", "torch.nn.attention.flex_attention"}
BUILTINS = _words("""
    __builtins__ __import__ breakpoint compile delattr eval exec getattr globals hash id input locals
    memoryview open setattr vars
""")
"""Names no kernel needs: other ways to run text, to reach objects by name, and identities to key a cache with."""
TORCH_MAKERS = _words("""
    Size Tensor _check arange as_strided broadcast_shapes device dtype empty empty_like empty_strided enable_grad
    finfo full full_like get_autocast_dtype iinfo is_autocast_enabled is_complex is_floating_point is_grad_enabled
    is_tensor no_grad ones ones_like promote_types result_type scalar_tensor tensor zeros zeros_like
""")
"""What an own kernel may call from torch: allocation and constants. Dtypes are attributes, not calls."""
TORCH_ROOMS = frozenset({"autograd", "cuda", "func", "nn"})
TORCH_NAMED = frozenset(
    {("amp", "custom_bwd"), ("amp", "custom_fwd"), ("compiler", "disable"), ("compiler", "is_compiling")}
    | {
        ("library", name)
        for name in _words("""
            Library custom_op define impl infer_schema register_autograd register_fake register_kernel triton_op
            wrap_triton
        """)
    }
)
"""Single functions of further rooms: what wraps a kernel for autocast, the compiler and the dispatcher."""
TORCH_CUDA = _words("""
    current_device current_stream device device_count device_of get_device_capability get_device_name
    get_device_properties is_available
""")
METHODS = _words("""
    addmm amax amin argmax argsort bmm cumsum div einsum exp log log_softmax logsumexp
    masked_fill matmul max mean min mm mul norm pow prod rsqrt scatter_add scatter_add_ silu softmax
    sqrt std sub sum topk var
""")
"""Tensor methods that compute; those that own kernels' host code is caught with. Operators show at run time, and so
do methods that Python's lists and sets have as well."""
ATTRIBUTES = _words("""
    _C _cdata _dynamo _inductor backends cpp_extension cudart f_back f_globals f_locals gi_frame storage
    tb_frame tb_next untyped_storage
""")
MAIN = ("__name__ == '__main__'", "'__main__' == __name__")
"""How a file asks whether it is the program."""
OF_TORCH = _words("aten prim prims")
"""Namespaces of operators that are everybody's."""
BY_TEXT = frozenset({("operator", "attrgetter"), ("operator", "methodcaller")})
"""Ways to reach for names that no reader sees."""
JIT = ("jit", "autotune", "heuristics")
DUNDERS = _words("__doc__ __init__ __name__ __post_init__ __qualname__ __version__")
"""Attributes between double underscores that only say how a thing is called, or set it up."""
PLAIN = _words("None bool bytes dtype float frozenset int str torch torch.dtype tuple")
"""Annotations of values that are the same whoever asks: what is kept under them is no answer to a tensor."""
