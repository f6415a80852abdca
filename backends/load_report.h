/* SPDX-License-Identifier: Apache-2.0 */

/*
 * load_report: reads the Prometheus text of an engine's /metrics (vLLM, SGLang) for what routing
 * needs. Names that engines renamed are known by all their names. Pure; any thread.
 */
#ifndef BACKENDS_LOAD_REPORT_H
#define BACKENDS_LOAD_REPORT_H

#include "backends/runtime/slice.h"
#include "backends/worker.h"

/*
 * Fills report from text; several engines behind one port (data-parallel ranks) are summed.
 * Returns the engine recognised; ENGINE_UNKNOWN leaves report->is_known false.
 */
enum engine_kind load_report_parse(struct slice text, uint64_t now_ms,
                                   struct worker_report *report);

#endif
