"""An ordinary `torch.nn.Module` as a model: of a lab, of torchvision or of timm.

The module is built once as a template, tried on random images, and then run on params and buffers from outside
(`torch.func.functional_call`). Its last linear layer is the classifier, all else the encoder.
"""

import contextlib
import copy
import functools
import importlib
import inspect
import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bench.errors import suggestion
from bench.models.base import BoundModel, Model, Params
from bench.registry import Entry, Registry

Build = Callable[..., nn.Module]
_TRIED = 4  # images of the trial
_PASSES = 12  # of the trial in training mode, for buffers that move late
_BEFORE = "input"  # the layer to which params before the first layer belong


@dataclass(frozen=True)
class FromModule(Model):
    """A model whose network is a module; `model_of` makes a subclass for each function that builds one.

    Layers are the modules with a param of two or more dimensions. All other params, such as those of a normalisation, belong to
    the layer before them: "conv1.norm.bn1_weight". Those of the classifier are "classifier.weight" and "classifier.bias".

    Buffers that a forward pass in training mode changes are those of the model, such as running statistics; all others, and
    params that require no gradient, are constants, as the module has them when it is built with the seed 0. What the
    module draws in training mode, as dropout does, it draws from PyTorch's own generators; they are seeded by the
    client's, and so are the generators that NumPy and Python share.

    Raises:
        ValueError: if the module cannot be built for these images and classes, or is no classifier of them.
    """

    build: ClassVar[Build]
    head_name: ClassVar[str | None] = None

    def __post_init__(self):
        self._template  # noqa: B018  (tries the module)

    @property
    def _template(self) -> "_Template":
        return _template(type(self), self.input_shape, self.num_classes)

    @property
    def loop_only(self):
        return self._template.loop_only

    @property
    def depends_on_mode(self):
        return self._template.depends_on_mode

    @property
    def smallest_batch(self):
        return self._template.smallest_batch

    def layers(self):
        return dict(self._template.layers)

    def init(self, generator):
        template = self._template
        module = _built(type(self), self.input_shape, self.num_classes, _seed(generator))
        drawn = dict(module.named_parameters())
        weight, bias = (drawn.get(f"{template.head}.{part}") for part in ("weight", "bias"))
        params = {ours: drawn[theirs].detach() for ours, theirs in template.params.items()}
        params["classifier.weight"] = weight.detach()
        return params if bias is None else {**params, "classifier.bias": bias.detach()}

    def init_buffers(self):
        template = self._template
        return {ours: template.constants[theirs].clone() for ours, theirs in template.buffers.items()}

    def features(self, params, x, bound):
        template, module = self._template, self._template.encoder
        if module.training != bound.training:
            module.train(bound.training)
        buffers = {theirs: bound.buffers[ours] for ours, theirs in template.buffers.items()}
        constants = template.constants_for(x)
        given = {**constants, **{theirs: params[ours] for ours, theirs in template.params.items()}}
        given |= buffers
        with self._randomness(bound, x.device):
            z = torch.func.functional_call(module, given, (x,))
        for name, leaf in constants.items():
            if given[name] is not leaf or leaf._version:
                raise ValueError(
                    f"{type(self).__name__} has changed its buffer {name}, which stood still in the first passes; let it move "
                    "from the first pass in training mode on."
                )
        for name, before in buffers.items():
            if given[name] is not before:  # the module has put another tensor in its place
                before.copy_(given[name])
        return z

    def head(self, params, z):
        return F.linear(z, params["classifier.weight"], params.get("classifier.bias"))

    def hidden(self, params, x, bound):
        template, found = self._template, {}

        def keep(name: str) -> Callable:
            return lambda module, inputs, output: found.update({name: output})

        modules = dict(template.encoder.named_modules())
        with contextlib.ExitStack() as hooks:
            for name, path in template.paths.items():
                hooks.callback(modules[path].register_forward_hook(keep(name)).remove)
            z = self.features(params, x, bound)
        yield from ((name, output) for name, output in found.items() if isinstance(output, Tensor))
        yield "features", z

    def _randomness(self, bound: BoundModel, device: torch.device) -> contextlib.AbstractContextManager:
        """PyTorch's own generators, seeded by that of the client, as far as the module draws from them."""
        if not (bound.training and self._template.draws):
            return contextlib.nullcontext()
        if bound.generator is None:
            raise ValueError(f"{type(self).__name__} draws random numbers in training mode, but there is no generator.")
        return _seeded(_seed(bound.generator), device)


class _Template(NamedTuple):
    """A module, and what a trial has shown of it.

    Attributes:
        encoder: the module without its classifier, whose place has the identity.
        head: the path of the classifier in the module.
        params, buffers: our name of each tensor of the encoder -> the module's.
        layers: name -> shape of the first of its tensors; the classifier is the last.
        paths: name of each layer of the encoder -> path of its module.
        constants: all tensors of the encoder that are no params, by the module's names: also the initial buffers.
        draws, mixes: whether training mode draws random numbers, and whether an output depends on other images of the batch.
        depends_on_mode, smallest_batch: see `Model`.
        trials: what has been found out when it was asked for.
    """

    encoder: nn.Module
    head: str
    params: Mapping[str, str]
    buffers: Mapping[str, str]
    layers: Mapping[str, tuple[int, ...]]
    paths: Mapping[str, str]
    constants: Params
    draws: bool
    mixes: bool
    depends_on_mode: bool
    smallest_batch: int
    images: Tensor
    trials: dict[Any, Any]

    @property
    def loop_only(self) -> str:
        if self.draws:
            return "draws random numbers that the vectorised engine would draw once for all clients"
        if self.mixes or self.buffers:
            return "normalises by batch statistics, which padding rows would enter"
        if "loop_only" not in self.trials:
            self.trials["loop_only"] = self._vmap_refuses()
        return self.trials["loop_only"]

    def constants_for(self, x: Tensor) -> Params:
        """The constants on the device and in the precision of images."""
        key = (x.device, x.dtype)
        if key not in self.trials:
            self.trials[key] = {
                name: leaf.to(x.device, x.dtype if leaf.is_floating_point() else None, copy=True)
                for name, leaf in self.constants.items()
                if name not in self.buffers.values()
            }
        return self.trials[key]

    def _vmap_refuses(self) -> str:
        """Why the gradients of several clients cannot be traced at once, as the end of a sentence; "" if they can."""
        tensors = dict(self.encoder.named_parameters())
        params = {name: torch.stack([tensors[name].detach()] * 2) for name in self.params.values()}

        def loss(own: Params, x: Tensor) -> Tensor:
            return torch.func.functional_call(self.encoder, {**self.constants, **own}, (x,)).square().sum()

        self.encoder.train()
        try:
            with warnings.catch_warnings(action="ignore"):
                torch.func.vmap(torch.func.grad(loss))(params, torch.stack([self.images] * 2))
        except Exception as error:  # whatever the code of a module raises
            return f"torch.func.vmap cannot trace: {_in_words(error)}"
        return ""


def model_of(name: str, build: Build, /, head: str | None = None, version: int = 1, **options: Any) -> type[FromModule]:
    """The model of a function or class that makes a module of `(input_shape, num_classes, **options)`.

    Args:
        name: of the model.
        build: input_shape is (channels, height, width); the module takes images [B, C, H, W] and returns logits
            [B, num_classes].
        head: path of the classifier in the module, as "fc"; by default the last `torch.nn.Linear`.
        version: see `Model`.
    """
    own = {"build": staticmethod(functools.partial(build, **options)), "head_name": head, "version": version}
    return type(name, (FromModule,), {**own, "__doc__": inspect.getdoc(build), "__module__": __name__})


@functools.cache
def of_entry(entry: Entry) -> type[Model]:
    """The model that is registered: a `Model`, or what makes a module.

    Raises:
        ValueError: if its file cannot be imported, or a `Model` has options, which are its fields.
    """
    found = entry.load()
    if not (isinstance(found, type) and issubclass(found, Model)):
        return model_of(entry.name, found, **entry.options)
    if entry.options:
        raise ValueError(
            f"{entry.place}: options of registered_model, here {', '.join(entry.options)}, are for what makes a "
            f"torch.nn.Module, but {entry.target} is a Model; write them as its fields."
        )
    return found


@functools.cache
def of_library(name: str) -> type[FromModule]:
    """A model of torchvision ("torchvision:mobilenet_v3_small") or timm, without trained weights.

    Raises:
        ValueError: if the library is not installed, or has no model of that name.
    """
    library, _, which = name.partition(":")
    try:
        models = importlib.import_module("torchvision.models" if library == "torchvision" else "timm")
    except ImportError as error:
        raise ValueError(
            f"The model {name} is one of {library}, which is not installed; install it, or name another model."
        ) from error
    known = models.list_models(module=models) if library == "torchvision" else models.list_models()
    if which not in known:
        where = f"{models.__name__}.list_models()"
        raise ValueError(
            f"{library} has no model {which!r}.{suggestion(which, known)} {where} names those that it has."
        )

    def build(input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
        channels, height, width = input_shape
        if library == "timm":
            return models.create_model(which, pretrained=False, num_classes=num_classes, in_chans=channels)
        if channels != 3:
            raise ValueError(f"{name} takes images of 3 channels, but these have {channels}; use another model.")
        sized = {"image_size": height} if which.startswith("vit_") else {}
        return models.get_model(which, weights=None, num_classes=num_classes, **sized)

    kind = model_of(name, build)
    kind.library = library
    return kind


# The trial


@functools.lru_cache(maxsize=64)
def _template(kind: type[FromModule], shape: tuple[int, int, int], num_classes: int) -> _Template:
    module = _built(kind, shape, num_classes, seed=0)
    images = torch.rand(_TRIED, *shape, generator=torch.Generator().manual_seed(0))
    head = _head_of(kind, module)
    _check_logits(kind, copy.deepcopy(module), head, images, num_classes)
    encoder = copy.deepcopy(module)
    parent, _, last = head.rpartition(".")
    setattr(encoder.get_submodule(parent), last, nn.Identity())

    found = _tried(kind, module, encoder, head, images)
    params, buffers, layers, paths = _layout(kind, encoder, found.moved)
    kept = {
        name: leaf.detach().clone()
        for name, leaf in (*encoder.named_parameters(), *encoder.named_buffers())
        if name not in params.values()
    }
    weight = module.get_submodule(head).weight
    return _Template(
        encoder=encoder,
        head=head,
        params=params,
        buffers=buffers,
        layers={**layers, "classifier": tuple(weight.shape)},
        paths=paths,
        constants=kept,
        draws=found.draws,
        mixes=found.mixes,
        depends_on_mode=found.draws or found.mixes or bool(found.moved) or found.differs,
        smallest_batch=found.smallest_batch,
        images=images,
        trials={},
    )


class _Findings(NamedTuple):
    """What passes in both modes have shown: `moved` are the buffers that training changes, `differs` says whether training mode
    gives other outputs than evaluation; see `_Template` for the others."""

    moved: set[str]
    draws: bool
    mixes: bool
    differs: bool
    smallest_batch: int


def _tried(kind: type[FromModule], module: nn.Module, encoder: nn.Module, head: str, images: Tensor) -> _Findings:
    """Runs the encoder in both modes, its params moved a little: what is multiplied by an initial 0 shows, too.

    Raises:
        ValueError: if the module keeps to no rule that makes a run repeatable, or its logits are not those of its classifier.
    """
    same, other = (
        _built(kind, tuple(images.shape[1:]), module.get_submodule(head).out_features, seed) for seed in (0, 1)
    )
    _check_drawn(kind, module, same, other)
    tried = copy.deepcopy(encoder)
    noise = torch.Generator().manual_seed(1)
    for leaf in tried.parameters():
        size = leaf.abs().mean() if leaf.any() else 1
        leaf.data += 0.1 * size * torch.randn(leaf.shape, generator=noise).to(leaf.dtype)
    initial = {name: leaf.clone() for name, leaf in tried.named_buffers()}

    def moved() -> set[str]:
        return {name for name, leaf in tried.named_buffers() if not torch.equal(leaf, initial[name])}

    tried.eval()
    with _seeded(0):
        before = _states()
        evaluated = _output(kind, tried, images)
        alone = torch.cat([_output(kind, tried, image[None]) for image in images])
        if _states() != before:
            raise ValueError(
                f"The model {kind.__name__} draws random numbers in evaluation mode, so that no accuracy could be repeated; "
                "draw only where self.training is true, as F.dropout(x, training=self.training) does."
            )
    if moving := moved():
        raise ValueError(
            f"The model {kind.__name__} changes its buffer {min(moving)} in evaluation mode; change it only where "
            "self.training is true."
        )
    if alone.shape != evaluated.shape or not _alike(alone, evaluated, 1e-3):
        raise ValueError(
            f"The model {kind.__name__} makes other features of an image alone than of one among others in evaluation mode; "
            "keep the first axis, as in x.squeeze((2, 3)), and normalise by running statistics."
        )
    tried.train()
    with _seeded(0):
        before = _states()
        trained = _output(kind, tried, images)
        draws = _states() != before
    for _ in range(_PASSES):
        _output(kind, tried, images)
    moves = moved()
    with _seeded(0):
        mixed = _output(kind, tried, torch.cat([images[:1], 1 - images[1:]]))
    with _seeded(0):
        again = _output(kind, tried, images)
    try:
        smallest = 1 if _output(kind, tried, images[:1]).shape == alone[:1].shape else 2
    except ValueError:
        smallest = 2
    mixes = not _alike(mixed[0], again[0], 1e-5)
    return _Findings(moves, draws, mixes, not torch.equal(evaluated, trained), smallest)


def _alike(one: Tensor, other: Tensor, tolerance: float) -> bool:
    """Whether features differ by no more than rounding, a share of the largest one."""
    return bool((one - other).abs().max() <= tolerance * other.abs().max())


def _check_drawn(kind: type[FromModule], module: nn.Module, same: nn.Module, other: nn.Module) -> None:
    """Raises ValueError unless the seed decides the initial values, and only those of what is trained.

    Args:
        same, other: built with the same seed, and with another one.
    """
    for (name, leaf), again, drawn in zip(_tensors(module), _tensors(same), _tensors(other), strict=True):
        if not torch.equal(leaf, again[1]):
            raise ValueError(
                f"The model {kind.__name__} has other initial values of {name} each time that it is built; draw them by "
                "PyTorch, numpy.random or random, without a seed of your own."
            )
        if not (leaf.requires_grad or torch.equal(leaf, drawn[1])):
            raise ValueError(
                f"The model {kind.__name__} draws {name} at random and does not train it; that would be one draw for all "
                "seeds: let it require a gradient, or give it the same values each time."
            )


def _tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _built(kind: type[FromModule], shape: tuple[int, int, int], num_classes: int, seed: int) -> nn.Module:
    """The module, its initial values drawn from a seed.

    Raises:
        ValueError: if it cannot be built.
    """
    with _seeded(seed):
        try:
            module = kind.build(shape, num_classes)
        except ValueError:
            raise
        except Exception as error:  # whatever the code of a module raises
            raise ValueError(
                f"The model {kind.__name__}{_place(kind, error)} cannot be built for images of {_size(shape)} and "
                f"{num_classes} classes: {_in_words(error)}"
            ) from error
        if not isinstance(module, nn.Module):
            raise ValueError(f"The model {kind.__name__} must make a torch.nn.Module, but got {module!r:.80}.")
        if any(is_lazy(leaf) for leaf in module.parameters()):
            _output(kind, module.eval(), torch.zeros(2, *shape))
    return module


def _head_of(kind: type[FromModule], module: nn.Module) -> str:
    """Path of the classifier.

    Raises:
        ValueError: if there is none.
    """
    linear = [path for path, part in module.named_modules() if isinstance(part, nn.Linear) and path]
    if kind.head_name is None and linear:
        return linear[-1]
    if kind.head_name in linear:
        return str(kind.head_name)
    got = f"none called {kind.head_name!r}" if kind.head_name else "none"
    raise ValueError(
        f"The model {kind.__name__} needs a torch.nn.Linear as its classifier, but has {got}; its linear layers: "
        f"{', '.join(linear) or 'none'}."
    )


def _check_logits(kind: type[FromModule], module: nn.Module, head: str, images: Tensor, num_classes: int) -> None:
    """Raises ValueError unless the outputs of a module are in both modes those of the weight and bias of its classifier, one
    logit for each class. May change the module."""
    part = module.get_submodule(head)
    trained = {name for name, leaf in module.named_parameters() if leaf.requires_grad}
    if f"{head}.weight" not in trained or (part.bias is not None and f"{head}.bias" not in trained):
        raise ValueError(
            f"The classifier {head} of the model {kind.__name__} must have a weight of its own that is trained, without "
            "weight_norm or the like, and not that of another layer."
        )
    given: list[Tensor] = []
    part.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    for training in (False, True):
        given.clear()
        with _seeded(0):
            logits = _output(kind, module.train(training), images)
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        if shape != (len(images), num_classes):
            mode = "training" if training else "evaluation"
            raise ValueError(
                f"The model {kind.__name__} must return logits [{len(images)}, {num_classes}] of {len(images)} images and "
                f"{num_classes} classes, and nothing else, but returns {shape} in {mode} mode."
            )
        with torch.no_grad():
            is_its = len(given) == 1 and given[0].dim() == 2 and part.out_features == num_classes
            if not is_its or not torch.allclose(F.linear(given[0], part.weight, part.bias), logits, atol=1e-5):
                linear = {
                    path: one for path, one in module.named_modules() if isinstance(one, nn.Linear) and path != head
                }
                other = next((path for path, one in linear.items() if path and one.out_features == num_classes), None)
                named = (
                    f', or name the classifier: @registered_model("{kind.__name__}", head="{other}")' if other else ""
                )
                raise ValueError(
                    f"What the model {kind.__name__} returns are not the outputs of its linear layer {head}, called once on "
                    f"features [B, D]; return logits without a softmax{named}."
                )


@torch.no_grad()
def _output(kind: type[FromModule], module: nn.Module, images: Tensor) -> Tensor:
    """What a module makes of images.

    Raises:
        ValueError: with the error of the module, or if it writes into the images.
    """
    writes = images._version
    try:
        with warnings.catch_warnings(action="ignore"):
            made = module(images)
    except Exception as error:  # whatever the code of a module raises
        raise ValueError(
            f"The model {kind.__name__}{_place(kind, error)} cannot take images of {_size(images.shape[1:])}: "
            f"{_in_words(error)}"
        ) from error
    if images._version != writes:
        raise ValueError(
            f"The model {kind.__name__} changes its images in place, so that a second pass sees others; make new tensors, such "
            "as x = x - 0.5 for x -= 0.5, and F.relu(x) for an inplace ReLU as the first layer."
        )
    return made


def _layout(
    kind: type[FromModule], encoder: nn.Module, moved: set[str]
) -> tuple[dict[str, str], dict[str, str], dict[str, tuple[int, ...]], dict[str, str]]:
    """Our names of params and moving buffers, layers and the paths of their modules."""
    params: dict[str, str] = {}
    buffers: dict[str, str] = {}
    layers: dict[str, tuple[int, ...]] = {}
    paths: dict[str, str] = {}
    seen: set[int] = set()
    layer = _BEFORE
    for path, part in encoder.named_modules():
        own = {name: leaf for name, leaf in part.named_parameters(recurse=False) if leaf.requires_grad}
        is_layer = path and not path.endswith("norm") and any(leaf.dim() > 1 for leaf in own.values())
        if is_layer:
            layer = f"pre_{path}" if path.split(".")[0] == "classifier" else path  # the classifier's names are its own
            paths[layer] = path
        inside = f"{layer}." if is_layer else f"{layer}.norm.{path.replace('.', '_')}{'_' * bool(path)}"
        for name, leaf in own.items():
            if id(leaf) not in seen:  # tied params are one
                seen.add(id(leaf))
                if inside + name in params:
                    raise ValueError(
                        f"The model {kind.__name__} has two params that would be called {inside + name}; rename one of their "
                        "modules."
                    )
                layers.setdefault(layer, tuple(leaf.shape))
                params[inside + name] = f"{path}.{name}".lstrip(".")
        for name, _ in part.named_buffers(recurse=False):
            if (theirs := f"{path}.{name}".lstrip(".")) in moved:
                buffers[inside + name] = theirs
    return params, buffers, layers, paths


# Random numbers


@contextlib.contextmanager
def _seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """The generators that PyTorch, NumPy and Python share start from a seed within the context, and are as before after it."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        if device is not None and device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _states() -> tuple[Any, ...]:
    """Where these generators are on the host."""
    _, keys, *rest = np.random.get_state()
    return random.getstate(), keys.tobytes(), *rest, torch.get_rng_state().numpy().tobytes()


def _seed(generator: torch.Generator) -> int:
    return int(torch.randint(2**62, (), generator=generator))


def _size(shape: Any) -> str:
    return "x".join(map(str, shape))


def _place(kind: type[FromModule], error: Exception) -> str:
    """ " in mylab/models/tiny.py, line 9," of a model of a lab that has raised an error; "" of any other."""
    entry = Registry("model").get(kind.__name__)
    if not entry or not entry.lab:
        return ""
    place = entry.place_of(error)
    return f" in {place}{',' * (', line' in place)}"


def _in_words(error: Exception) -> str:
    """Type and first line of an error, as a sentence."""
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first.rstrip('.')}."
