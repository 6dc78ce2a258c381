// Package kinds owns the table of the stored object kinds, and turns its rows into REST storage.
//
// A kind is a row: the strategy that validates it, the views that other subresources write, its short names and
// categories. Everything else is the same for all kinds.
//
//	table, Deps ──▶ Build ──▶ Set: one genericregistry.Store per row, its views, its REST endpoints
//	                           │
//	                           ├──▶ control installs Served(version) of every group of Groups
//	                           └──▶ control/rest adds endpoints that are more than storage (binding, exec, scale …) with Set.Add
//
// Nothing here starts a goroutine. A Set is built once, and read-only once the server is assembled.
package kinds
