/* SPDX-License-Identifier: Apache-2.0 */

/*
 * gather: the kernel that moves small pieces between an engine's pages and a slab in HBM, and what
 * it is given. gather.cu is compiled to gather.ptx, which is committed beside it and built in as
 * text; the driver makes code for the GPU at hand of it.
 */
#ifndef KVTIER_DEVICE_GATHER_H
#define KVTIER_DEVICE_GATHER_H

/* Plain C types of known size: the GPU's compiler includes this too, and knows no libc. */
struct gather_segment {
    unsigned long long address; /* of block 0's piece */
    unsigned long long stride;  /* from one block's piece to the next */
    unsigned int bytes;
    unsigned int page_offset; /* where the piece is in a page */
};

/* The kernel's one parameter. All addresses are as the GPU sees them. */
struct gather_job {
    unsigned long long segments; /* struct gather_segment[segment_count] */
    unsigned long long blocks;   /* unsigned int[page_count]: engine blocks */
    unsigned long long slab;     /* page_count pages of page_bytes, one behind the other */
    unsigned int segment_count;
    unsigned int page_count;
    unsigned int page_bytes;
    unsigned int is_scatter; /* slab to pages; 0: pages to slab */
};

enum { GATHER_THREADS = 256 }; /* of a thread block; a warp moves a piece */

#define GATHER_NAME "samovar_gather"

extern const char gather_ptx[];

#endif
