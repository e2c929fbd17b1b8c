"""Files of a lab's folder: a method, a dataset and a partition."""

from tests.support.method_files import RUNNABLE

METHOD = RUNNABLE.replace('"fedmine"', '"fedmine", style={"colour": "#bd1f01"}')
POLLEN = '''import numpy as np

from datasets import registered_dataset


@registered_dataset("pollen", title="Pollen", model="mlp")
def load_pollen():
    """Pollen of three plants."""
    labels = np.arange(60) % 3
    images = np.random.default_rng(0).integers(0, 99, (60, 8, 8, 3), dtype=np.uint8) + 50 * labels[:, None, None, None]
    images = images.astype(np.uint8)
    return images[:48], labels[:48], images[48:], labels[48:]
'''
HOSPITAL = '''import numpy as np

from datasets.partitions import registered_partition


@registered_partition("hospital", title="Hospitals({}, {})", share=0.5, wards=2)
def hospital(labels, num_classes, num_clients, rng, share, wards):
    """The first clients have a share of all examples."""
    rows = rng.permutation(len(labels))
    first = round(share * len(rows))
    return [*np.array_split(rows[:first], wards), *np.array_split(rows[first:], num_clients - wards)]
'''
FILES = {"algorithms/fedmine.py": METHOD, "datasets/pollen.py": POLLEN, "partitions/hospital.py": HOSPITAL}
