// Package prose is a planted tree: each comment but the last breaks the rule for prose once.
package prose

// Who asks twice is answered once.
func a() {}

// Somebody reads this later.
func b() {}

func c() {} // nobody calls it

// d returns the other's name.
func d() {}

// e waits. What is left is thrown away.
func e() {}

/*
Everybody has read access.
*/
func f() {}

// g tells a reader who wrote the file and what is in it.
func g() {}
