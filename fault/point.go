//go:build !failpoint

package fault

// Point is where a test may plant a panic. It does nothing in this build.
func Point(string) {}
