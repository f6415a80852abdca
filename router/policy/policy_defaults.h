/* SPDX-License-Identifier: Apache-2.0 */

/*
 * policy_defaults: what is assumed of a worker's speed where its agent does not say, and of a
 * text's tokens until answers have taught better. For whoever fills a struct worker_view; a policy
 * itself never reads them.
 *
 * The rates are those of one 8B model in 16 bits on one current data centre GPU, as models of
 * engines commonly put it: 8,000 prompt tokens read a second, 6 ms a token written, 0.35 ms more
 * for each request that runs beside it. samovar-sim keeps time by the same numbers unless told
 * otherwise. An absolute error here is harmless: all workers share it, and only the ratio of
 * reading to writing bends a choice.
 */
#ifndef ROUTER_POLICY_POLICY_DEFAULTS_H
#define ROUTER_POLICY_POLICY_DEFAULTS_H

#define POLICY_PREFILL_TOKENS_PER_MS_DEFAULT 8.0
#define POLICY_DECODE_MS_PER_TOKEN_DEFAULT   6.0
#define POLICY_DECODE_MS_PER_REQUEST_DEFAULT 0.35

/* English text; code and JSON have more, most other scripts too. */
#define POLICY_TOKENS_PER_BYTE_DEFAULT 0.25

/* The cache of that model: 32 layers, 8 heads of 128, keys and values in 16 bits. The way into the
 * engine's memory is a PCIe 4.0 x16 link, the disk one NVMe: what they do in practice. A load
 * begins and ends with a step of the engine's scheduler. */
#define TIER_BYTES_PER_TOKEN_DEFAULT 131072.0
#define TIER_START_MS_DEFAULT        5.0
#define TIER_CPU_BYTES_PER_S_DEFAULT 20e9
#define TIER_SSD_BYTES_PER_S_DEFAULT 3e9

#endif
