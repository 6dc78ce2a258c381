// Package fields owns the answer to "what does this field do here?" for every field of every kind that is served.
//
//	table/GROUP.tsv   one row a field: what happens with it, which package acts on it, which test shows it
//	rules             the fields that have no effect: an object that sets one is refused, or its writer is warned
//	Judge             what the rules say of one object; admission asks it (control/auth/admission/noeffect.go)
//
// A row says one of four things:
//
//	acted    a package, or a library that it uses, does what the field says
//	stored   data for readers: nothing in a cluster acts on it, or only programs of others do; the row says for whom
//	refused  an object that sets it is refused, with the field's name and what to do
//	said     the writer is warned, or the status or an event of the object says that it has no effect
//
// The test holds the table to the OpenAPI document of a running server: a field without a row fails, and so does a row
// without a field, without its package, its test or its rule. A new Kubernetes minor shows its new fields that way.
//
// Judge is pure.
package fields
