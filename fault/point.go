//go:build !failpoint

package fault

// Point is a statement at which a test may plant a panic. It does nothing in this build.
func Point(string) {}
