"""SCAFFOLD (FedBench): what the code of fedbench 0.1.3 trains under the name SCAFFOLD.

fedbench/algorithms/scaffold/{client,server,strategy,model_utils}.py of the package on PyPI.
"""

from dataclasses import dataclass

from algorithms import Average, LocalResult, RoundBased, Tree, descend, gradient, registered, tree
from algorithms.shared.local_sgd import clipped


@registered("fedbench-scaffold", title="SCAFFOLD (FedBench)")
@dataclass(frozen=True)
class FedBenchScaffold(RoundBased):
    """Four things differ from the paper's Algorithm 1. What a client sends for its variate is (trained - start) / (K lr), of
    the opposite sign. Its own variate is 0 in every round: it is saved, and never read. The server adds the mean of what the
    clients send, where the paper adds that of the changes of their variates. Gradients are clipped to the norm 1.

    So in a round trained - start = -K lr (M g + c), with mean gradients g and M the gain of momentum, and then c becomes
    c + (trained - start) / (K lr) = -M g. In the next round, M g + c is near 0, and training stalls.
    """

    broadcast = ("control",)

    def init_server(self, task, params: Tree) -> Tree:
        return {"control": tree.zeros_like(params)}

    def local_update(self, data, plan, view) -> LocalResult:
        def clipped_gradient(loss, params, batch, view):
            return clipped(gradient(loss, params, batch, view), 1.0)

        control = view.server["control"]
        trained = descend(
            self.local_loss, view.params, data, plan, view, gradient_of=clipped_gradient, step_offset=control
        ).params
        delta = tree.subtract(trained, view.params)
        return LocalResult(
            {"delta": delta, "sent": tree.scale(delta, 1 / (view.num_steps * view.settings.lr))}, view.client
        )

    def weighted_means(self, updates: Tree, cohort) -> dict[str, Average]:
        return {name: Average(updates[name], cohort.weights) for name in ("delta", "sent")}

    def server_step(self, task, params: Tree, server: Tree, update: Tree, cohort) -> tuple[Tree, Tree]:
        share = len(cohort.ids) / cohort.population
        control = tree.map(lambda c, sent: c + share * sent, server["control"], update["sent"])
        return tree.add(params, update["delta"]), {"control": control}
