// Package rules owns the reasons for and against placing a pod on a node: filters, which allow or refuse, and scores,
// which compare. One rule is one small file: its decision, the text a user reads, and the events that may undo its
// refusal.
//
// A rule looks at the pod once per attempt (Prepare) and then at each node. Rules are functions of the pod, the snapshot
// and the listers; they have no state of their own, start no goroutine and take no lock, so the same input gives the
// same decision. Reason texts, normalisation and weights are those of upstream's default profile, because people and
// programs read them.
package rules
