"""How trials share a GPU; no GPU is needed to choose."""

from types import SimpleNamespace

import pytest

from bench.config.resolve import resolve
from bench.execution.gpu_sharing import GpuAllocator, Profile, Unprofiled, kind_of, shortened, trials_per_gpu
from bench.execution.resources import Resources

AUTO = Resources(1, 1.0, "cuda", auto=True)


def job(engine="auto", tf32=False, **settings):
    flat = {"algorithm": "fedavg", "dataset": "cifar10", "partition": "label-2"}
    return SimpleNamespace(config=resolve(flat | settings), engine=engine, tf32=tf32, base="")


@pytest.fixture
def allocator(tmp_path):
    """Makes an allocator whose profiler needs a GPU of 100 GB; notes what was profiled and said."""

    def make(resources=AUTO, cores=16, used_mb=2000, busy=0.1, gpu="H200", fails=False):
        def profile(of, block):
            made.profiled.append(kind_of(of))
            if fails:
                raise Unprofiled("no split found")
            return Profile(used_mb, 100_000, busy)

        said = []
        made = GpuAllocator(
            tmp_path / "shares.json",
            resources,
            hardware=gpu,
            trials_by_cores=cores,
            profile=profile,
            on_message=said.append,
        )
        made.profiled, made.said = [], said
        return made

    return make


@pytest.mark.parametrize(
    ("used_mb", "busy", "cores", "trials", "by"),
    [
        (2000, 0.1, 16, 9, "its time"),
        (2000, 0.1, 4, 4, "the cores"),
        (30_000, 0.1, 16, 2, "its memory"),
        (99_000, 0.99, 16, 1, "its memory"),
        (2000, 0.0, 16, 16, "the cores"),
    ],
)
def test_memory_time_and_cores_bound_how_many_trials_share_a_gpu(used_mb, busy, cores, trials, by):
    assert trials_per_gpu(Profile(used_mb, 100_000, busy), cores) == (trials, by)


def test_a_profile_has_short_rounds_and_waits_for_no_discriminators():
    of = {"rounds": 2, "local_epochs": 3, "base": "ditto", "capacity": 3.0}
    short = shortened(job(algorithm="fedcollab", **of).config)
    assert (short.rounds, short.local_epochs, short.local_steps) == (10**6, None, 40)
    assert short.algorithm["discriminator_rounds"] == 1 and short.algorithm["capacity"] == 3.0
    assert short.algorithm["base"]["name"] == "ditto"
    assert shortened(job().config).algorithm == job().config.algorithm


def test_runs_of_a_kind_are_profiled_once_and_what_was_found_is_remembered(allocator):
    first = allocator()
    assert first.of(job()) == first.of(job(seed=5, partition="dir-0.1")) == Resources(1, 1 / 9, "cuda")
    assert first.of(job(algorithm="moon")).gpus == 1 / 9
    assert len(first.profiled) == 2
    assert first.said[0] == (
        'cifar10 fedconcat, simple-cnn, {"name": "fedavg"}, all 40 clients per round, batch 64: one trial needs 2,000 MB and '
        "10 % of a GPU's time, so 9 at once (bounded by its time)"
    )
    later = allocator(cores=4)
    assert later.of(job()).gpus == 1 / 4, "the profile is remembered, not what followed from it"
    assert later.profiled == []
    other = allocator(gpu="T4")
    other.of(job())
    assert len(other.profiled) == 1


def test_a_kind_that_cannot_be_tried_gets_a_whole_gpu(allocator):
    found = allocator(fails=True)
    assert found.of(job()).gpus == 1.0
    assert found.said[0].endswith("could not be profiled (no split found), so it gets a whole GPU")


@pytest.mark.parametrize(
    "change",
    [
        {"clients": 20},
        {"batch_size": 32},
        {"model": "mlp"},
        {"algorithm": "moon"},
        {"algorithm": "fedconcat", "num_clusters": 3},
        {"dataset": "svhn"},
        {"engine": "loop"},
        {"tf32": True},
        {"image_size": 64},
        {"transform": "moon"},
    ],
)
def test_what_moves_memory_or_time_of_a_gpu_is_another_kind(change):
    assert kind_of(job(**change)) != kind_of(job())


def test_another_width_of_a_model_is_another_kind():
    assert kind_of(job(model="resnet50", model_width=0.5)) != kind_of(job(model="resnet50"))


def test_cohorts_of_everyone_are_another_kind_than_equal_ones_of_some():
    """Rounds of everyone are replayed as CUDA graphs."""
    everyone, some = kind_of(job(clients=20)), kind_of(job(clients=40, participation=0.5))
    assert "20 clients per round" in everyone and "20 clients per round" in some and everyone != some


def test_a_trial_that_did_not_fit_gets_at_least_twice_as_much_until_it_has_a_gpu_for_itself(allocator):
    found = allocator()
    share = found.of(job())
    for expected in (1 / 4, 1 / 2, 1.0):
        assert found.out_of_memory(job(), share)
        share = found.of(job())
        assert share.gpus == pytest.approx(expected)
    assert not found.out_of_memory(job(), share)
    assert allocator().of(job()).gpus == 1.0, "remembered"
    assert "out of GPU memory, so 4 at once instead of 9" in found.said[1]


def test_a_bound_on_clients_at_once_is_remembered_for_the_kind(allocator):
    allocator().reduce_clients_per_vmap(job(), 10)
    allocator().reduce_clients_per_vmap(job(), 20)
    assert allocator().clients_per_vmap_of(job(seed=3)) == 10
    assert allocator().clients_per_vmap_of(job(algorithm="moon")) is None


def test_without_a_gpu_and_with_a_given_share_nothing_is_profiled(allocator):
    assert allocator(Resources(1)).of(job()) == Resources(1)
    given = allocator(Resources(1, 0.5, "cuda"))
    assert given.of(job()) == Resources(1, 0.5, "cuda")
    assert given.profiled == []
    assert given.out_of_memory(job(), given.of(job())) and given.of(job()).gpus == 1.0


@pytest.mark.parametrize(
    ("content", "what"), [("{", "is not readable JSON"), ('{"H200": []}', "does not hold what it should: H200 is not")]
)
def test_a_damaged_file_is_named_and_everything_measured_again(allocator, tmp_path, content, what):
    (tmp_path / "shares.json").write_text(content)
    known = allocator()
    assert known.clients_per_vmap_of(job()) is None
    assert len(known.said) == 1 and f"shares.json {what}" in known.said[0]
    assert known.said[0].endswith("is measured again.")


def test_several_seeds_in_one_process_need_the_memory_of_each_and_the_time_of_one(allocator):
    assert Profile(10_600, 100_000, 0.1).of_seeds(3) == Profile(30_600, 100_000, 0.1)
    made = allocator(used_mb=10_600)
    assert (made.of(job()).gpus, made.of(job(), 3).gpus) == (1 / 8, 1 / 2)
    assert len(made.profiled) == 1 and "3 seeds together" not in made.said[0]
    assert "one trial needs 30,600 MB" in made.said[1]


def test_trials_that_are_out_of_memory_get_so_much_that_half_as_many_fit(allocator):
    made = allocator(used_mb=10_600)
    share = made.of(job(), 3)
    assert made.out_of_memory(job(), share, 3) and made.of(job(), 3).gpus == 1.0
    assert made.said[-1].endswith("3 seeds together: out of GPU memory, so 1 at once instead of 2")
    assert not made.out_of_memory(job(), made.of(job(), 3), 3), "it has a whole GPU"
    assert made.of(job()).gpus == 1 / 8, "one seed fits as before"
    third = allocator(Resources(1, 1 / 3, "cuda"))
    assert third.out_of_memory(job(algorithm="moon"), third.of(job(algorithm="moon")))
    assert third.of(job(algorithm="moon")).gpus == 1.0


def test_a_run_that_starts_from_another_one_gets_more_after_it_was_out_of_memory(allocator):
    made, of = allocator(Resources(1, 0.25, "cuda")), job()
    of.base = "runs/a1"
    assert made.of(of).gpus == 0.25
    assert made.out_of_memory(of, made.of(of)) and made.of(of).gpus == 0.5


def test_what_was_measured_with_other_code_is_measured_again(allocator, monkeypatch):
    first = allocator()
    first.of(job())
    assert first.out_of_memory(job(), Resources(1, 0.125, "cuda"))
    shared = first.of(job()).gpus
    assert allocator().of(job()).gpus == shared == 0.25 and len(first.profiled) == 1
    monkeypatch.setattr("bench.execution.gpu_sharing.code_version", lambda config: {"engine": "0" * 16})
    other = allocator()
    assert other.of(job()).gpus < shared and len(other.profiled) == 1
