// Package initializerstest holds the test of what meets only in a whole server: controllers, which make objects and count those
// they see, and an API whose objects wait for initializers before they are seen.
package initializerstest
