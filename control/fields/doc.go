// Package fields owns the answer to "what does this field do here?" for every field of every served kind.
//
//	table/GROUP.tsv   one row a field: what happens with it, which package acts on it, which test shows it
//	rules             the fields without effect: an object that sets one is refused, or its client is warned
//	Judge             applies the rules to one object; admission calls it (control/auth/admission/noeffect.go)
//
// A row says one of four things:
//
//	acted    a package, or a library that it uses, does what the field says
//	stored   data for readers: nothing in a cluster acts on it, or only foreign programs do; the row names the readers
//	refused  an object that sets it is refused, with the field's name and what to do
//	said     the client is warned, or the status or an event of the object says that it has no effect
//
// A test compares the table with the OpenAPI document of a running server. It fails for a field without a row, and for
// a row without a field, without its package, its test or its rule. So a new Kubernetes minor shows its new fields.
//
// Judge is pure.
package fields
