"""Weights that come from elsewhere: what contradicts its config.json is refused by name."""

import json
import shutil
import unittest

from tessera import SOURCE, RunTest, tiny_deck, write_tokens

class WeightsTest(RunTest):
    def evaluable(self, **changes):
        return tiny_deck(self.corpus, **{"model__vocab": 256, "run__steps": 1,
                                         "data__validation": [str(self.corpus)],
                                         "evaluate__batches": 2, **changes})

    def starting_from(self, name, source, **changes):
        deck = self.evaluable(**changes)
        for key in ("family", "layers", "heads", "hidden", "vocab", "context"):
            del deck["model"][key]
        deck["model"]["init_from"] = str(source)
        return self.deck(name, deck)

    def job(self, *arguments, code=0, ranks=0, says=()):
        """Every rank of it ends with `code`, and each of `says` is said once."""
        job = self.run_job(ranks, *arguments, each=ranks > 0)
        self.assertEqual(job.codes or [job.code], [code] * max(ranks, 1), job.output)
        for text in says:
            self.assertEqual(job.output.count(text), 1, f"{text}\n{job.output}")
        return job.output


class Heads(WeightsTest):
    def test_a_tied_head_that_differs_is_refused(self):
        source = self.dir / "hf"
        shutil.copytree(SOURCE / "tests/data/hf/llama", source)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
        self.job("import", source, "--to", self.dir / "imported", code=3,
                 says=["lm_head.weight[0, 0] = ", "model.embed_tokens.weight[0, 0] = ",
                       "set tie_word_embeddings = false"])
        write_tokens(self.corpus, vocab=config["vocab_size"])
        for layout in ({"zero__stage": 3}, {"parallel__pipeline": 2}, {"parallel__tensor": 2}):
            deck = self.starting_from(next(iter(layout)), source, **layout)
            self.job("train", deck, ranks=2, code=3, says=["set tie_word_embeddings = false"])
        (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        self.job("import", source, "--to", self.dir / "untied")


if __name__ == "__main__":
    unittest.main(verbosity=2)
