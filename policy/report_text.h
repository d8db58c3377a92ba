/* report_text.h - sections of report.txt, for report_text.c alone, which says in which order they come. */
#ifndef BSG_POLICY_REPORT_TEXT_H
#define BSG_POLICY_REPORT_TEXT_H

#include "policy/report.h"

void bsg_report_text_accounting(const struct bsg_report *report, struct bsg_out *out);
void bsg_report_text_fit(const struct bsg_report *report, struct bsg_out *out);
void bsg_report_text_groups(const struct bsg_report *report, struct bsg_out *out);
void bsg_report_text_fragmentation(const struct bsg_report *report, struct bsg_out *out);
void bsg_report_text_timeline(const struct bsg_report *report, struct bsg_out *out);
void bsg_report_text_growth(const struct bsg_report *report, struct bsg_out *out);
void bsg_report_text_advice(const struct bsg_report *report, struct bsg_out *out);
void bsg_report_text_notes(const struct bsg_report *report, struct bsg_out *out);

#endif
