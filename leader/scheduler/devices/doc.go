// Package devices knows for the scheduler which devices there are and which of them claims have (KEP-4381), and turns requests for
// extended resources into a claim where a DeviceClass stands for them (KEP-5004).
//
//	claim events, reservations ──▶ Book: who holds which device ──▶ index ──▶ allocator of upstream's library
//	slice events ─────────────────▶      which devices there are ──▶
//
// A claim holds its devices from the moment a pod was placed with them (reserved, in memory only) until an event shows the claim
// without an allocation. The index is changed by what has changed since the last attempt; nothing is gathered anew for each pod.
//
// The Book has one mutex, which is never held over a call to other code. The index and the allocator belong to the goroutine that
// makes attempts.
package devices
