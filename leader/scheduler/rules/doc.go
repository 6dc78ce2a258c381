// Package rules holds the rules for placing a pod on a node: filters, which admit or refuse a node, and scores, which compare nodes. One
// rule is one small file: its decision, the text that users read, and the events that may undo its refusal.
//
// A rule is prepared for a pod once per attempt (Prepare) and then applied to each node. Rules are functions of the pod, the snapshot and
// the listers. They keep no state, start no goroutine and take no lock, so the same input gives the same decision. Reason texts,
// normalisation and weights are the same as in upstream's default profile, because people and programs read them.
package rules
