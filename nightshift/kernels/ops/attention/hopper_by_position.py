"""What attention's kernels for Hopper do otherwise where heads lie side by side, position by position.

A head's rows are `h` · `d` elements apart, or as far as the tensor says: a tile is found by its row of all batches
and its head's first column.
"""

from __future__ import annotations

from nightshift.kernels.generate.template import rewritten


def laid_out(problem: str, body: str, changes: str) -> tuple[str, str]:
    """A kernel of a problem, from that of contiguous (b, h, s, d), and the layouts that it takes."""
    return (rewritten(body, changes), "contiguous sliced") if "_by_position" in problem else (body, "contiguous")


FORWARD = """
-     s, heads, blocks, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
- ):
-     tiles = heads * blocks
+     s, heads, each, blocks, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
+ ):
+     tiles = heads * blocks

-             base = head * s
+             base = head // each * s
+             column = head % each * D

-                     q_map, [base + block * BM + part * (BM // 2), 0], q_full.index(part), q_room.index(part)
+                     q_map, [base + block * BM + part * (BM // 2), column], q_full.index(part), q_room.index(part)

-                 tma.async_copy_global_to_shared(k_map, [row, 0], k_full.index(slot), k_room.index(slot))
+                 tma.async_copy_global_to_shared(k_map, [row, column], k_full.index(slot), k_room.index(slot))

-                 tma.async_copy_global_to_shared(v_map, [row, 0], v_full.index(slot), v_room.index(slot))
+                 tma.async_copy_global_to_shared(v_map, [row, column], v_full.index(slot), v_room.index(slot))

-     out_map, q_room, k_room, v_room, o_room, q_full, q_free, k_full, k_free, v_full, v_free, order,
-     s, heads, blocks, scale, PART: gl.constexpr, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
+     out_map, logs, q_room, k_room, v_room, o_room, q_full, q_free, k_full, k_free, v_full, v_free, order,
+     s, heads, each, blocks, scale, PART: gl.constexpr, D: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,

-             made = sums * gl.convert_layout(1.0 / total, rows_a)[:, None]
+             made = sums * gl.convert_layout(1.0 / total, rows_a)[:, None]
+             gl.store(logs + head * s + block * BM + line, (high + gl.log2(total)) * 0.6931471805599453)

-             tma.async_copy_shared_to_global(out_map, [head * s + block * BM + PART * HALF, 0], o)
+             row = head // each * s + block * BM + PART * HALF
+             tma.async_copy_shared_to_global(out_map, [row, head % each * D], o)

-     q_map, k_map, v_map, o_map, s, heads, blocks, scale,
+     q_map, k_map, v_map, o_map, logs, s, heads, each, blocks, scale,

-             (consume, (o_map, q_room, k_room, v_room, o_room, q_full, q_free, k_full, k_free, v_full, v_free,
-                        order, s, heads, blocks, scale, 0, D, BM, BN, STAGES, TURNS)),
-             (consume, (o_map, q_room, k_room, v_room, o_room, q_full, q_free, k_full, k_free, v_full, v_free,
-                        order, s, heads, blocks, scale, 1, D, BM, BN, STAGES, TURNS)),
+             (consume, (o_map, logs, q_room, k_room, v_room, o_room, q_full, q_free, k_full, k_free, v_full,
+                        v_free, order, s, heads, each, blocks, scale, 0, D, BM, BN, STAGES, TURNS)),
+             (consume, (o_map, logs, q_room, k_room, v_room, o_room, q_full, q_free, k_full, k_free, v_full,
+                        v_free, order, s, heads, each, blocks, scale, 1, D, BM, BN, STAGES, TURNS)),

-                        v_free, s, heads, blocks, BM, BN, STAGES)),
+                        v_free, s, heads, each, blocks, D, BM, BN, STAGES)),

-     b, h, s, d = tensor.shape
+     b, s, h, d = tensor.shape

-     return TensorDescriptor(tensor, [b * h * s, d], [d, 1], [rows, d], layout)
+     return TensorDescriptor(tensor, [b * s, h * d], [tensor.stride(1), 1], [rows, d], layout)

-     b, h, s, d = q.shape
-     out = torch.empty((b, h, s, d), dtype=q.dtype, device=q.device)
+     b, s, h, d = q.shape
+     out = torch.empty((b, s, h, d), dtype=q.dtype, device=q.device)
+     logs = torch.empty((b, h, s), dtype=torch.float32, device=q.device)

-             tiles(q, 64), tiles(k, $bn), tiles(v, $bn), tiles(out, 64), s, b * h, blocks,
+             tiles(q, 64), tiles(k, $bn), tiles(v, $bn), tiles(out, 64), logs, s, b * h, h, blocks,

-     return out
+     return out, logs
"""
BACKWARD = """
- def inner(gradient, out, logs, rows, D: tl.constexpr):
+ def inner(gradient, out, logs, rows, s, heads, by_g, by_o, D: tl.constexpr):

-     at = (row + line)[:, None] * D + tl.arange(0, D)[None, :]
-     x = tl.load(gradient + at).to(tl.float32)
-     y = tl.load(out + at).to(tl.float32)
+     head = row // s
+     place = (head // heads * s + row % s + line)[:, None]
+     column = head % heads * D + tl.arange(0, D)[None, :]
+     x = tl.load(gradient + place * by_g + column).to(tl.float32)
+     y = tl.load(out + place * by_o + column).to(tl.float32)

- def put(out_map, row, room, value):
+ def put(out_map, row, column, room, value):

-     tma.async_copy_shared_to_global(out_map, [row, 0], room)
+     tma.async_copy_shared_to_global(out_map, [row, column], room)

-     g_map, q_map, k_map, v_map, r_map, ring, own, r_room, held, left, full, free, first, s, heads,
-     STAGES: gl.constexpr, LONGEST: gl.constexpr,
+     g_map, q_map, k_map, v_map, r_map, ring, own, r_room, held, left, full, free, first, s, heads, each,
+     D: gl.constexpr, STAGES: gl.constexpr, LONGEST: gl.constexpr,

-             base = (first + head) * s
-             for part in gl.static_range(2):
+             base = (first + head) * s
+             place = (first + head) // each * s
+             at = (first + head) % each * D
+             for part in gl.static_range(2):

-                 row = base + block * 128 + part * 64
-                 tma.async_copy_global_to_shared(k_map, [row, 0], held.index(part), own.index(2 * part))
-                 tma.async_copy_global_to_shared(v_map, [row, 0], held.index(part), own.index(2 * part + 1))
+                 row = place + block * 128 + part * 64
+                 tma.async_copy_global_to_shared(k_map, [row, at], held.index(part), own.index(2 * part))
+                 tma.async_copy_global_to_shared(v_map, [row, at], held.index(part), own.index(2 * part + 1))

-                 tma.async_copy_global_to_shared(q_map, [row, 0], bar, ring.index(2 * slot))
-                 tma.async_copy_global_to_shared(g_map, [row, 0], bar, ring.index(2 * slot + 1))
+                 tma.async_copy_global_to_shared(q_map, [place + i * 64, at], bar, ring.index(2 * slot))
+                 tma.async_copy_global_to_shared(g_map, [place + i * 64, at], bar, ring.index(2 * slot + 1))

-     w_map, k_out, v_out, ring, own, r_room, o_room, held, left, full, free, first, s, heads, scale,
+     w_map, k_out, v_out, ring, own, r_room, o_room, held, left, full, free, first, s, heads, each, scale,

-             row = (first + head) * s + low * 64
-             put(v_out, row, o, sum_v.to(dtype))
-             put(k_out, row, o, (sum_k * (scale * 0.6931471805599453)).to(dtype))
+             row = (first + head) // each * s + low * 64
+             at = (first + head) % each * D
+             put(v_out, row, at, o, sum_v.to(dtype))
+             put(k_out, row, at, o, (sum_k * (scale * 0.6931471805599453)).to(dtype))

-     g_map, q_map, k_map, v_map, r_map, w_map, k_out, v_out, first, s, heads, scale,
+     g_map, q_map, k_map, v_map, r_map, w_map, k_out, v_out, first, s, heads, each, scale,

-             (differentiate, (w_map, k_out, v_out, ring, own, r_room, o_room, held, left, full, free, first, s,
-                              heads, scale, 0, D, STAGES, EARLY, LONGEST)),
-             (differentiate, (w_map, k_out, v_out, ring, own, r_room, o_room, held, left, full, free, first, s,
-                              heads, scale, 1, D, STAGES, EARLY, LONGEST)),
+             (differentiate, (w_map, k_out, v_out, ring, own, r_room, o_room, held, left, full, free, first, s,
+                              heads, each, scale, 0, D, STAGES, EARLY, LONGEST)),
+             (differentiate, (w_map, k_out, v_out, ring, own, r_room, o_room, held, left, full, free, first, s,
+                              heads, each, scale, 1, D, STAGES, EARLY, LONGEST)),

-                      heads, STAGES, LONGEST)),
-         ],
-         [4, 1],
-         [240, 24],
-     )
+                      heads, each, D, STAGES, LONGEST)),
+         ],
+         [4, 1],
+         [240, 24],
+     )

-     w_map, k_map, w_room, k_room, k_full, k_free, w_full, w_free, first, s, heads, STAGES: gl.constexpr,
-     LONGEST: gl.constexpr,
+     w_map, k_map, w_room, k_room, k_full, k_free, w_full, w_free, first, s, heads, each, D: gl.constexpr,
+     STAGES: gl.constexpr, LONGEST: gl.constexpr,

-             base = (first + head) * s
-             low = (blocks - 1 - place) * 4
+             base = (first + head) // each * s
+             column = (first + head) % each * D
+             low = (blocks - 1 - place) * 4

-                 tma.async_copy_global_to_shared(k_map, [base + i * 64, 0], k_full.index(slot), k_room.index(slot))
+                 row = base + i * 64
+                 tma.async_copy_global_to_shared(k_map, [row, column], k_full.index(slot), k_room.index(slot))

-     q_out, w_room, k_room, o_room, k_full, k_free, w_full, w_free, first, s, heads, scale,
+     q_out, w_room, k_room, o_room, k_full, k_free, w_full, w_free, first, s, heads, each, scale,

-                 row = (first + head) * s + line * 64
-                 put(q_out, row, o, (up * scale).to(dtype))
-                 put(q_out, row + 64, o, (down * scale).to(dtype))
+                 row = (first + head) // each * s + line * 64
+                 column = (first + head) % each * D
+                 put(q_out, row, column, o, (up * scale).to(dtype))
+                 put(q_out, row + 64, column, o, (down * scale).to(dtype))

-     w_map, k_map, q_out, first, s, heads, scale, D: gl.constexpr, STAGES: gl.constexpr, LONGEST: gl.constexpr
+     w_map, k_map, q_out, first, s, heads, each, scale, D: gl.constexpr, STAGES: gl.constexpr,
+     LONGEST: gl.constexpr,

-             (gather, (q_out, w_room, k_room, o_room, k_full, k_free, w_full, w_free, first, s, heads, scale, 0,
-                       D, STAGES, LONGEST)),
-             (gather, (q_out, w_room, k_room, o_room, k_full, k_free, w_full, w_free, first, s, heads, scale, 1,
-                       D, STAGES, LONGEST)),
-             (fetch, (w_map, k_map, w_room, k_room, k_full, k_free, w_full, w_free, first, s, heads, STAGES,
-                      LONGEST)),
+             (gather, (q_out, w_room, k_room, o_room, k_full, k_free, w_full, w_free, first, s, heads, each, scale,
+                       0, D, STAGES, LONGEST)),
+             (gather, (q_out, w_room, k_room, o_room, k_full, k_free, w_full, w_free, first, s, heads, each, scale,
+                       1, D, STAGES, LONGEST)),
+             (fetch, (w_map, k_map, w_room, k_room, k_full, k_free, w_full, w_free, first, s, heads, each, D,
+                      STAGES, LONGEST)),

- def entry(gradient, q, k, v, out, logs):
-     b, h, s, d = q.shape
-     to_q, to_k, to_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
+ def heads_of(tensor):
+     b, s, h, d = tensor.shape
+     layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
+     return TensorDescriptor(tensor, [b * s, h * d], [tensor.stride(1), 1], [64, d], layout)
+
+
+ def entry(gradient, q, k, v, out, logs):
+     b, s, h, d = q.shape
+     to_q, to_k, to_v = (torch.empty((b, s, h, d), dtype=q.dtype, device=q.device) for _ in range(3))

-         inner[(b * h * s // 16,)](gradient, out, logs, rows, D=d, num_warps=2)
+         by_g, by_o = gradient.stride(1), out.stride(1)
+         inner[(b * h * s // 16,)](gradient, out, logs, rows, s, h, by_g, by_o, D=d, num_warps=2)

-                 tiles(gradient, d), tiles(q, d), tiles(k, d), tiles(v, d), row_map, tiles(work, 64),
-                 tiles(to_k, d), tiles(to_v, d), first, s, heads, 1.4426950408889634 * d**-0.5, D=d,
+                 heads_of(gradient), heads_of(q), heads_of(k), heads_of(v), row_map, tiles(work, 64),
+                 heads_of(to_k), heads_of(to_v), first, s, heads, h, 1.4426950408889634 * d**-0.5, D=d,

-                 tiles(work, 64), tiles(k, d), tiles(to_q, d), first, s, heads, d**-0.5, D=d, STAGES=$depth,
+                 tiles(work, 64), heads_of(k), heads_of(to_q), first, s, heads, h, d**-0.5, D=d, STAGES=$depth,
"""
