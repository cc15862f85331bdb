"""Snapshots of small clusters for tests: jobs are put on nodes, and the nodes' use follows from them."""

from __future__ import annotations

from dataclasses import replace

from slurm_elastic.daemon.slurm.model import Job, Node, Snapshot

TYPE = "a100"


class Cluster:
    """`nodes` nodes n1.. of `gpus` GPUs each; add jobs, then take a snapshot."""

    def __init__(self, nodes: int = 4, gpus: int = 4, cpus: int = 16, mem_mb: int = 64000) -> None:
        self.at = 1000.0
        self.jobs: dict[int, Job] = {}
        self.nodes = {
            f"n{i}": Node(
                name=f"n{i}",
                flags=frozenset({"IDLE"}),
                partitions=("main",),
                gpus=gpus,
                gpus_used=0,
                gpu_type=TYPE,
                cpus=cpus,
                cpus_used=0,
                mem_mb=mem_mb,
                mem_alloc_mb=0,
            )
            for i in range(1, nodes + 1)
        }

    def run(self, job_id: int, nodes: str, gpus_per_node: int = 4, comment: str = "", **more: object) -> Job:
        """A running job on these nodes ("n1 n2"), 2 CPUs and 1000 MB a GPU unless told otherwise."""
        names = tuple(nodes.split())
        return self._add(job_id, "RUNNING", names, len(names), gpus_per_node, comment, more)

    def wait(self, job_id: int, num_nodes: int = 1, gpus_per_node: int = 4, comment: str = "", **more: object) -> Job:
        """A waiting job, for resources unless told otherwise."""
        return self._add(job_id, "PENDING", (), num_nodes, gpus_per_node, comment, {"reason": "Resources", **more})

    def companion(self, job_id: int, base: int, nodes: str, gpus_per_node: int = 4, resize: int = 1) -> Job:
        """A running companion of `base`."""
        comment = f"selastic:companion-of={base};resize={resize}"
        return self.run(job_id, nodes, gpus_per_node, comment, name=f"selastic-{base}", batch_host="")

    def drain(self, node: str) -> None:
        self.nodes[node] = replace(self.nodes[node], flags=frozenset({"IDLE", "DRAIN"}))

    def change(self, job_id: int, **more: object) -> None:
        self.jobs[job_id] = replace(self.jobs[job_id], **self._ending(more))

    def snapshot(self) -> Snapshot:
        nodes = dict(self.nodes)
        for job in self.jobs.values():
            for name in job.nodes if job.state == "RUNNING" else ():
                node, share = nodes[name], len(job.nodes)
                nodes[name] = replace(
                    node,
                    gpus_used=node.gpus_used + job.gpus_per_node,
                    cpus_used=node.cpus_used + job.cpus // share,
                    mem_alloc_mb=node.mem_alloc_mb + job.mem_mb,
                )
        return Snapshot(at=self.at, jobs=dict(self.jobs), nodes=nodes)

    def _ending(self, more: dict[str, object]) -> dict[str, object]:
        """time_left_s as the end of a job."""
        left = {"ends_at": self.at + more["time_left_s"]} if more.get("time_left_s") is not None else {"ends_at": None}
        rest = {name: value for name, value in more.items() if name != "time_left_s"}
        return {**rest, **(left if "time_left_s" in more else {})}

    def _add(
        self,
        job_id: int,
        state: str,
        nodes: tuple[str, ...],
        count: int,
        gpus: int,
        comment: str,
        more: dict[str, object],
    ) -> Job:
        values: dict[str, object] = {
            "job_id": job_id,
            "het_job_id": 0,
            "het_offset": 0,
            "name": f"job{job_id}",
            "user": "alice",
            "uid": 1001,
            "account": "lab",
            "partition": "main",
            "qos": "normal",
            "state": state,
            "reason": "None",
            "nodes": nodes,
            "batch_host": nodes[0] if nodes else "",
            "num_nodes": count,
            "gpus": count * gpus,
            "gpus_per_node": gpus,
            "gpu_type": TYPE if gpus else "",
            "cpus": count * max(1, 2 * gpus),
            "mem_mb": 1000 * max(1, gpus),
            "priority": 100,
            "comment": comment,
            "time_limit_s": 3600,
            "ends_at": self.at + 3000 if nodes else None,
            "submit_time": 10.0 * job_id,
            "start_time": 500.0 if nodes else None,
        }
        self.jobs[job_id] = Job(**{**values, **self._ending(more)})  # type: ignore[arg-type]
        return self.jobs[job_id]
