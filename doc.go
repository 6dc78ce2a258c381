// Package balsa holds the house rules of this repository as tests; the program
// is cmd/balsa, and ARCHITECTURE.md says where everything else is.
package balsa
