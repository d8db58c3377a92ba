/*
 * policy_told.c - see policy.h: what an adapter tells for reports alone, and the report that somebody asks for. Nothing
 * is decided by it.
 */
#include <errno.h>
#include <string.h>

#include "policy/policy_state.h"

int bsg_policy_framework(struct bsg_policy *p, const struct bsg_framework *framework) {
  struct bsg_framework_told *told;

  if (!p || !p->live)
    return -ENODEV;
  if (framework->device < 0 || framework->device >= BSG_MAX_DEVICES)
    return -EINVAL;
  told = &p->devices[framework->device].framework;
  told->told = framework->allocated_bytes != BSG_BYTES_UNKNOWN;
  told->allocated_bytes = framework->allocated_bytes;
  told->reserved_bytes = framework->reserved_bytes;
  told->allocated_peak_bytes = framework->allocated_peak_bytes;
  told->reserved_peak_bytes = framework->reserved_peak_bytes;
  /* Counting these takes a while: they are told now and then, and stay as they were in between. */
  if (framework->parameter_bytes != BSG_BYTES_UNKNOWN || told->parameter_bytes == 0)
    told->parameter_bytes = framework->parameter_bytes;
  if (framework->gradient_bytes != BSG_BYTES_UNKNOWN || told->gradient_bytes == 0)
    told->gradient_bytes = framework->gradient_bytes;
  if (framework->optimizer_bytes != BSG_BYTES_UNKNOWN || told->optimizer_bytes == 0)
    told->optimizer_bytes = framework->optimizer_bytes;
  if (framework->python_stack)
    bsg_copy_text(p->python_stack, sizeof(p->python_stack), framework->python_stack);
  return 0;
}

int bsg_policy_held(struct bsg_policy *p, int device, const char *what, uint64_t tensors, uint64_t with_graph,
                    uint64_t bytes) {
  if (!p || !p->live)
    return -ENODEV;
  if (!what || device != p->held_device) {
    p->held_count = 0;
    p->held_device = device;
  }
  if (!what)
    return 0;
  if (p->held_count == BSG_HELD_KEPT)
    return -ENOSPC;
  struct bsg_held_kept *kept = &p->held[p->held_count++];
  *kept = (struct bsg_held_kept){.tensors = tensors, .with_graph = with_graph, .bytes = bytes};
  bsg_copy_text(kept->what, sizeof(kept->what), what);
  return 0;
}

int bsg_policy_note(struct bsg_policy *p, const char *name, const char *value) {
  struct bsg_note_kept note = {.name = ""};
  int at = 0;

  if (!p || !p->live)
    return -ENODEV;
  bsg_copy_text(note.name, sizeof(note.name), name);
  bsg_copy_text(note.value, sizeof(note.value), value);
  while (at < p->note_count && strcmp(p->notes[at].name, note.name) != 0)
    at++;
  if (at == BSG_NOTES_KEPT)
    return -ENOSPC;
  p->notes[at] = note;
  if (at == p->note_count)
    p->note_count++;
  return 0;
}

int bsg_policy_report(struct bsg_policy *p, struct bsg_when now, struct bsg_where where) {
  if (!p || !p->live || !p->device_seen)
    return -ENODEV;
  if (!bsg_state_summary(p, now, where, &p->summary))
    return -ENODEV;
  return bsg_state_report(p, now, &p->summary, "request");
}
