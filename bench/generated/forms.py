"""Functions and methods of torch in forms that the other kinds do not draw: by keyword, in place.

So that every name that tvdnn's tables have is drawn in each way that torch takes it.
"""

from bench.generated.kinds import kind
from bench.generated.pointwise import ANY
from bench.generated.source import chance, choice
from bench.generated.writer import RejectedError, Writer

ELEMENTWISE = (
    "torch.relu(input={0})",
    "F.relu(input={0}, inplace=False)",
    "torch.sigmoid(input={0})",
    "torch.tanh(input={0})",
    "F.leaky_relu(input={0}, negative_slope=0.1)",
    "F.elu(input={0}, alpha=0.7)",
    "F.gelu(input={0}, approximate='tanh')",
    "F.hardtanh(input={0}, min_val=-0.4, max_val=0.6)",
    "F.softplus(input={0}, beta=2, threshold=5)",
    "torch.celu({0})",
    "torch.celu({0}, alpha=0.4)",
    "torch.threshold({0}, 0.1, -0.2)",
    "F.threshold(input={0}, threshold=0.0, value=0.1)",
    "torch.clip({0}, -0.7, 0.7)",
    "torch.clip(input={0}, min=-0.5)",
    "torch.clamp(input={0}, max=0.5)",
    "torch.clamp_min({0}, -0.1)",
    "torch.clamp_max({0}, 0.3)",
    "{0}.clamp_max(0.2)",
    "{0}.clamp_max(max=0.2)",
    "{0}.clip(-0.3, 0.9)",
    "abs({0})",
    "torch.absolute({0})",
    "{0}.absolute()",
    "{0}.tanh().exp()",
    "torch.exp(input={0}.tanh())",
    "({0}.abs() + 0.5).log()",
    "({0} ** 2 + 1).sqrt()",
    "({0}.square() + 0.7).rsqrt()",
    "torch.square({0})",
    "torch.pow(input={0}, exponent=2)",
    "{0}.pow(exponent=3)",
    "{0} ** 1",
    "({0}.abs() + 0.5) ** -1",
    "({0}.abs() + 0.5) ** 0.5",
    "({0}.abs() + 0.5).pow(1.5)",
    "1 / ({0}.abs() + 0.5)",
    "torch.div(1.5, {0}.abs() + 0.5)",
    "torch.subtract({0}, 0.5)",
    "torch.multiply({0}, 1.5)",
    "torch.divide({0}, 2)",
    "torch.true_divide({0}, 3)",
    "torch.negative({0})",
    "{0}.subtract(0.5)",
    "{0}.multiply(other=-1.5)",
    "{0}.divide(2)",
    "{0}.true_divide(4)",
    "{0}.negative()",
    "torch.add(input={0}, other=0.5)",
    "0.5 - {0}",
    "torch.mul(input={0}, other=2)",
    "+{0}",
    "torch.positive({0})",
    "{0}.positive()",
    "F.normalize(input={0}, dim=1, eps=0.5)",
    "torch.detach({0}) + {0}",
)
OF_TWO = (
    "torch.add(input={0}, other={1}, alpha=2)",
    "torch.subtract({0}, {1})",
    "torch.multiply({0}, {1})",
    "torch.mul(input={0}, other={1})",
    "torch.divide({0}, {1}.abs() + 1)",
    "torch.true_divide({0}, {1}.square() + 1)",
    "{0}.subtract({1}, alpha=0.5)",
    "{0}.multiply({1})",
    "{0}.div({1} ** 2 + 1)",
    "{0}.divide({1}.abs() + 2)",
    "{0}.true_divide({1}.abs() + 2)",
    "{0}.maximum({1})",
    "torch.max({0}, {1})",
    "{0}.min(other={1})",
    "{0}.minimum({1})",
    "torch.maximum(input={0}, other={1})",
    "torch.minimum(input={0}, other={1})",
)
# Results of a copy that are changed in place: on any value autograd would refuse most of them.
COPIES = ("({0} * 1.5)", "{0}.clone()", "torch.clone({0})")
CHANGES = (
    "%s.clip_(-0.5, 0.6)",
    "torch.clip_(%s, max=0.5)",
    "%s.clamp_min_(0.1)",
    "torch.clamp_min_(%s, -0.2)",
    "%s.clamp_max_(0.4)",
    "torch.clamp_max_(%s, 0.2)",
    "torch.abs_(%s)",
    "%s.absolute_()",
    "torch.exp_(%s * 0.5)",
    "torch.log_(%s.abs() + 0.5)",
    "(%s.abs() + 0.5).log_()",
    "torch.sqrt_(%s.square() + 1)",
    "(%s.square() + 1).sqrt_()",
    "torch.rsqrt_(%s.square() + 1)",
    "(%s.square() + 1).rsqrt_()",
    "torch.square_(%s)",
    "torch.reciprocal_(%s.abs() + 1)",
    "(%s.abs() + 1).reciprocal_()",
    "torch.celu_(%s)",
    "torch.selu_(%s)",
    "F.selu_(%s)",
    "torch.threshold_(%s, 0.1, 0.3)",
    "F.hardtanh_(%s)",
    "F.leaky_relu_(%s, 0.3)",
    "F.elu_(%s, 0.5)",
    "torch.relu_(%s)",
    "%s.tanh_()",
    "%s.sub_(0.5)",
    "%s.mul_(-0.5)",
    "%s.div_(3)",
    "%s.negative_()",
    "torch.neg_(%s)",
    "torch.negative_(%s)",
    "%s.multiply_(2)",
    "torch.detach_(%s)",
)
MOVES = (
    "torch.flatten(input={0}, start_dim=2).view({0}.shape)",
    "torch.flatten({0}, 2).view_as({0})",
    "{0}.flatten(2).reshape_as({0})",
    "torch.reshape({0}, {0}.shape)",
    "torch.reshape(input={0}, shape={0}.size())",
    "torch.permute(input={0}, dims=(0, 1, 3, 2))",
    "{0}.permute(dims=(0, 1, 3, 2))",
    "torch.transpose(input={0}, dim0=2, dim1=3)",
    "{0}.swapaxes(2, 3)",
    "torch.swapdims({0}, 3, 2)",
    "{0}.swapdims(-1, -2)",
    "torch.moveaxis({0}, 3, 2)",
    "{0}.moveaxis((2, 3), (3, 2))",
    "torch.movedim(input={0}, source=2, destination=3)",
    "torch.unsqueeze({0}, 2).squeeze(2)",
    "torch.squeeze(torch.unsqueeze({0}, dim=1), dim=1)",
    "torch.unflatten({0}, 1, (1, -1)).flatten(1, 2)",
    "torch.broadcast_to({0}, {0}.shape)",
    "torch.broadcast_to({0}.mean((2, 3), keepdim=True), {0}.shape)",
    "{0}.mean(3, keepdim=True).broadcast_to({0}.shape)",
    "{0}.mean(2, keepdim=True).expand(size={0}.shape)",
    "{0}.mean((1, 2), keepdim=True).expand_as({0})",
    "{0}[:, :, :1].tile((1, 1, 2, 1))",
    "{0}.select(1, 0).unsqueeze(1)",
    "torch.select({0}, 2, -1).unsqueeze(2)",
    "{0}.select(dim=3, index=0)[..., None]",
    "torch.stack({0}.unbind(1), 1)",
    "torch.stack(torch.unbind({0}, dim=2), dim=3)",
    "torch.stack({0}.unbind(dim=3), 2)",
    "torch.cat({0}.chunk(2, 1), 1)",
    "torch.cat(tensors={0}.split(1, 2), dim=3)",
    "torch.concatenate(torch.tensor_split({0}, 2, dim=1), dim=1)",
    "torch.concat({0}.tensor_split(2, 3), dim=2)",
    "torch.cat(list({0}.chunk(2, 2))[::-1], 2)",
    "torch.cat([part * 2 for part in {0}.chunk(3, 1)], 1)",
    "torch.cat({0}.chunk(2, 1)[1:], 1)",
    "torch.chunk({0}, 1, 1)[0]",
    "torch.cat([{0}], 1)",
    "{0}.narrow(1, 0, {0}.shape[1])",
    "torch.narrow(input={0}, dim=2, start=0, length=1)",
    "{0}.unbind(1)[0].unsqueeze(1)",
    "torch.roll(input={0}, shifts=1, dims=2)",
    "{0}.roll(shifts=(1, 2), dims=(2, 3))",
    "torch.flip(input={0}, dims=(2,))",
    "{0}.flip(2, 3)",
    "{0}[:, :, 0].unsqueeze(2)",
    "{0}[..., -1:].contiguous()",
    "{0}.contiguous(memory_format=torch.channels_last)",
    "{0}.clone(memory_format=torch.preserve_format)",
    "torch.squeeze({0}[:, :1]).reshape({0}[:, :1].shape)",
    "torch.channel_shuffle({0}, 1)",
    "F.channel_shuffle({0}, groups={0}.shape[1])",
    "F.pad(input={0}, pad=(1, 0), mode='constant', value=0.25)",
)
REDUCTIONS = (
    "torch.amin({0}, dim=1, keepdim=True)",
    "{0}.std(1, keepdim=True)",
    "torch.std(input={0}, dim=(2, 3), unbiased=False, keepdim=True)",
    "{0}.var(dim=(1, 2, 3), correction=0, keepdim=True)",
    "torch.var_mean({0}, dim=(2, 3), keepdim=True)[0]",
    "torch.var_mean({0}, 1, keepdim=True, correction=0)[1]",
    "torch.std_mean({0}, dim=1, keepdim=True)[0]",
    "torch.std_mean(input={0}, dim=(2, 3), unbiased=True, keepdim=True)[1]",
    "torch.max({0}, 1, keepdim=True)[0]",
    "torch.max({0}, dim=2, keepdim=True).values",
    "torch.min(input={0}, dim=3, keepdim=True)[0]",
    "{0}.min(1, keepdim=True).values",
    "{0}.max(dim=-1, keepdim=True)[-2]",
    "torch.sum(input={0}, dim=1, keepdim=True)",
    "torch.mean(input={0}, dim=(1, 2), keepdim=True)",
    "torch.norm(input={0}, dim=1, keepdim=True)",
    "torch.linalg.vector_norm({0}, 2, 1, True)",
    "{0}.norm(2, 1, True)",
    "torch.softmax(input={0}, dim=1)",
    "F.softmax(input={0}, dim=3)",
    "{0}.log_softmax(dim=2)",
)
FIVE = (
    "{0}.mean(2)",
    "{0}.mean((2, 4), keepdim=True).flatten(1, 2)",
    "{0}.sum((1, 3))",
    "{0}.amax((2, 4))",
    "({0} * {0}.mean(2, keepdim=True)).flatten(1, 2)",
    "({0} + {0}.mean((3, 4), keepdim=True)).flatten(1, 2)",
    "{0}.mean(2, keepdim=True).expand_as({0}).flatten(1, 2)",
    "{0}.mean((2, 4), keepdim=True).expand_as({0}).flatten(1, 2)",
    "{0}.softmax(2).flatten(1, 2)",
    "{0}.transpose(1, 2).flatten(1, 2)",
    "{0}[:, :, 0]",
)


@kind(12, *ANY)
def other_form(w: Writer, x: str) -> str:
    return w.line(choice(w.source, ELEMENTWISE), x, permuted=w.kind(x) == "last")


@kind(4)
def of_six_dimensions(w: Writer, x: str) -> str:
    """A map in parts of rows and channels, reduced or repeated along every other dimension."""
    n, c, height, width = w.shape(x)
    if c % 2 or height % 2:
        raise RejectedError("an odd number of rows or channels")
    parts = w.line(f"{{0}}.view({n}, 2, {c // 2}, 2, {height // 2}, {width})", x)
    text = choice(w.source, ("{0}.sum((1, 3, 5))", "{0}.mean((1, 3, 5))", "{0}.amax((2, 4))"))
    return w.line(text, parts)


@kind(4, *ANY)
def other_form_of_two(w: Writer, x: str) -> str:
    other = w.pick([x, *w.alike(x)])
    return w.line(choice(w.source, OF_TWO), x, other, permuted=w.kind(x) == "last")


@kind(5, *ANY)
def change_of_a_copy(w: Writer, x: str) -> str:
    text = choice(w.source, CHANGES) % choice(w.source, COPIES)
    return w.line(text, x, permuted=w.kind(x) == "last")


@kind(16)
def other_move(w: Writer, x: str) -> str:
    return w.line(choice(w.source, MOVES), x)


@kind(6)
def other_reduction(w: Writer, x: str) -> str:
    text = choice(w.source, REDUCTIONS)
    if any(name in text for name in ("std", "norm", "var")) and min(w.shape(x)[1:]) < 2:
        raise RejectedError("the root of zero")
    value = w.line(text, x)
    return w.line("{0} + {1}", x, value) if chance(w.source, 60) else value


@kind(5)
def of_five_dimensions(w: Writer, x: str) -> str:
    """Two maps side by side, [N, C, 2, H, W] or [N, 2, C, H, W], and what is made of them."""
    other = w.pick([x, *w.alike(x)])
    stacked = w.line(f"torch.stack([{{0}}, {{1}}], {choice(w.source, (2, 1))})", x, other)
    return w.line(choice(w.source, FIVE), stacked)
