"""Runs of which something lives on the host or on disks."""

import h5py

from tessera import RunTest, metrics, tiny_deck

TIERS = ("parameters", "gradients", "optimizer", "activations")


def tensors_of(checkpoint):
    """All datasets of a checkpoint's files, by file and name."""
    found = {}
    for path in sorted(checkpoint.glob("*.h5")):
        with h5py.File(path) as file:
            def note(name, item):
                if isinstance(item, h5py.Dataset):
                    found[f"{path.name}/{name}"] = item[()].tobytes()

            file.visititems(note)
    return found


class OffloadTest(RunTest):
    def setUp(self):
        super().setUp()
        self.disks = [self.dir / "disk0", self.dir / "disk1"]
        for disk in self.disks:
            disk.mkdir()

    def offload_deck(self, name, tier="nvme", **changes):
        """The learning rate is constant, so that numbers do not depend on when a run ends. tier: of
        all that can live elsewhere."""
        changes = {"schedule__kind": "constant", "zero__stage": 3, "run__backend": "cpu",
                   "run__steps": 6, "model__layers": 2,
                   **{f"offload__{what}": tier for what in TIERS},
                   "offload__nvme": [str(disk) for disk in self.disks], "offload__block": 4096,
                   **changes}
        return self.deck(name, tiny_deck(self.corpus, **changes))

    def left(self):
        """What there is in the directories."""
        return sorted(path for disk in self.disks for path in disk.iterdir())

    def state_files(self):
        return sorted(path for disk in self.disks for path in disk.glob("tessera_*/state.*"))

    def resumed(self, name):
        return [e["step"] for e in metrics.read_events(self.dir / name) if e["event"] == "resume"]

    def start_and_wait(self, deck, step, **options):
        """A job of two ranks that trains and has reported a step."""
        process = self.start(2, "train", deck, **options)
        self.assertTrue(self.wait_for(lambda: self.newest_step(deck.stem) >= step, process))
        return process
