# SPDX-License-Identifier: Apache-2.0
"""metrics: what was counted (counts.py) in the form in which vLLM wants it, for its log and its
/metrics. Counts of the scheduler and of the worker come together in it, once a step."""

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (KVConnectorPromMetrics,
                                                                  KVConnectorStats)

from . import counts


class Stats(KVConnectorStats):
    """data: {key of counts.py: number}"""

    def reset(self):
        self.data = {}

    def aggregate(self, other):
        for key, number in other.data.items():
            self.data[key] = self.data.get(key, 0) + number
        return self

    def reduce(self):
        """For vLLM's log: one line now and then, and none while there is nothing to say."""
        return {key.replace(" ", "/"): number for key, number in sorted(self.data.items())}

    def is_empty(self):
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    """vllm:samovar_..._total{reason}; all reasons are there from the start, with 0."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {}
        for what, reasons in counts.REASONS.items():
            family = self._counter_cls(name=f"vllm:samovar_{what}_total",
                                       documentation=counts.HELP[what],
                                       labelnames=[*labelnames, "reason"])
            for engine, values in per_engine_labelvalues.items():
                for reason in reasons:
                    self._counters[engine, counts.key_of(what, reason)] = family.labels(*values,
                                                                                        reason)

    def observe(self, transfer_stats_data, engine_idx=0):
        for key, number in transfer_stats_data.items():
            self._counters[engine_idx, key].inc(number)
