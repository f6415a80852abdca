/* SPDX-License-Identifier: Apache-2.0 */

/*
 * stream_identity: the numbers by which text is named that routers and agents must have in common
 * beside the secret: part of the fingerprint. What the canonical stream is, only the router knows
 * (router/prompt).
 */
#ifndef HASHING_STREAM_IDENTITY_H
#define HASHING_STREAM_IDENTITY_H

enum {
    STREAM_VERSION =
        3, /* of root and canonical stream together; whatever changes either raises it */
    STREAM_BLOCK_BYTES = 256,
    STREAM_CUT_BYTES_MIN = 64,
};

#endif
