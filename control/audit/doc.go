// Package audit owns the record of who asked what: which requests are recorded, how much of them, and where the records
// go.
//
//	authenticate ─▶ Rules: level and stages of this request ─▶ event ─┬▶ log: a file that is rotated, or standard output
//	                                                                  └▶ webhook: batches, sent again when refused
//
// Events, policies and both backends are upstream's (audit.k8s.io/v1). What is added: a policy for those who name none,
// which never records what a Secret holds; a warning when a policy given does; and an end, at which everything recorded is
// written before the process goes.
//
// Settings without a log and without a webhook make no Auditor, and a request costs nothing for it. Goroutines: those of
// batches, from Start until Stop; and the one of lumberjack that removes old files, which it offers no way to end.
package audit
