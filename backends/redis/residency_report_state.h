/* SPDX-License-Identifier: Apache-2.0 */

/* residency_report_state: how far a report has come, as a table of states and events. Pure. */
#ifndef BACKENDS_REDIS_RESIDENCY_REPORT_STATE_H
#define BACKENDS_REDIS_RESIDENCY_REPORT_STATE_H

enum residency_report_state {
    RESIDENCY_REPORT_AWAY,     /* Redis is not there */
    RESIDENCY_REPORT_LOOKING,  /* asks who has the lease and what is there */
    RESIDENCY_REPORT_RIVALLED, /* another has the lease */
    RESIDENCY_REPORT_PAGING,   /* says its pages whole; nobody knows of them yet */
    RESIDENCY_REPORT_OPENING, /* first change, meta, lease: whoever sees the lease may believe it */
    RESIDENCY_REPORT_LIVE,    /* says changes, renews the lease */
    RESIDENCY_REPORT_CLOSED,
    RESIDENCY_REPORT_STATE_COUNT
};

enum residency_report_event {
    RESIDENCY_REPORT_LINKED, /* Redis is there (again) */
    RESIDENCY_REPORT_LOST,   /* what was asked is not answered */
    RESIDENCY_REPORT_DUE,    /* time to look again */
    RESIDENCY_REPORT_DOUBT,  /* the lease was not there any more */
    RESIDENCY_REPORT_OURS,   /* what is there is what we said last */
    RESIDENCY_REPORT_OTHERS, /* somebody else's lease lives */
    RESIDENCY_REPORT_GONE,   /* what is there is not what we said, or is to be no longer */
    RESIDENCY_REPORT_PAGED,  /* all pages are said */
    RESIDENCY_REPORT_OPENED, /* and the lease */
    RESIDENCY_REPORT_CLOSE,
    RESIDENCY_REPORT_EVENT_COUNT
};

/* The state after event, or -1 where it cannot happen. */
int residency_report_state_after(enum residency_report_state state,
                                 enum residency_report_event event);

#endif
