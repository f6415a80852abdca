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
 * Fills report from text; several engines behind one port (data-parallel ranks) are summed, their
 * cache usage is averaged. Lines that are not understood are passed over. Returns the engine whose
 * metrics these are. report->is_known only if both running and waiting were said: false for
 * ENGINE_UNKNOWN. What is not said stays 0.
 */
enum engine_kind load_report_parse(struct slice text, uint64_t now_ms,
                                   struct worker_report *report);

enum { LOAD_REPORT_RANK_COUNT_MAX = 64 };

/* The same with a report of its own for each rank 0..rank_count, at most
 * LOAD_REPORT_RANK_COUNT_MAX. What is said of no rank is no rank's. */
enum engine_kind load_report_parse_ranks(struct slice text, uint64_t now_ms,
                                         struct worker_report *reports, uint32_t rank_count);

#endif
