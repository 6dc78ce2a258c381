// Package kinds owns the table of the object kinds the API server stores, and turns its rows into REST storage.
//
// A kind is a row: the strategy that says what makes it valid, the views of it that other subresources write, the
// names people call it. Everything else is the same for all of them.
//
//	table, Deps ──▶ Build ──▶ Set: one genericregistry.Store per row, its views, its REST endpoints
//	                           │
//	                           ├──▶ control installs Served(version) of every group of Groups
//	                           └──▶ control/rest adds what is more than storage (binding, exec, scale …) with Set.Add
//
// Nothing here starts a goroutine; a Set is built once and read-only after the server is assembled.
package kinds
