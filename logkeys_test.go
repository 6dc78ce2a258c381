package balsa

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// logKey is the style of the keys in log lines.
var logKey = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// keysFrom says at which argument the keys of a logger's method begin.
var keysFrom = map[string]int{
	"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "DebugContext": 2, "InfoContext": 2, "WarnContext": 2, "ErrorContext": 2, "Log": 3, "With": 0,
}

// attributes are the functions of package slog whose first argument is a key.
var attributes = []string{"Any", "Bool", "Duration", "Float64", "Group", "Int", "Int64", "String", "Time", "Uint64"}

// badLogKeys lists the keys of log lines that are not of the one style, as "line 7: key". Keys that are no literals are not
// seen. A logger is known by its name, which contains "log".
func badLogKeys(set *token.FileSet, file *ast.File) (bad []string) {
	check := func(n ast.Expr) (isKey bool) {
		literal, ok := n.(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return false
		}
		if key, err := strconv.Unquote(literal.Value); err != nil || !logKey.MatchString(key) || key == "error" {
			bad = append(bad, fmt.Sprintf("line %d: %s", set.Position(n.Pos()).Line, literal.Value))
		}
		return true
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := method.X.(*ast.Ident); ok && id.Name == "slog" && slices.Contains(attributes, method.Sel.Name) && len(call.Args) > 0 {
			check(call.Args[0])
			return true
		}
		first, ok := keysFrom[method.Sel.Name]
		if !ok || !isLogger(method.X) {
			return true
		}
		for i := first; i < len(call.Args); i++ {
			if check(call.Args[i]) {
				i++ // its value
			}
		}
		return true
	})
	return bad
}

// isLogger tells whether an expression ends in a name that contains "log", or in a call of one's With.
func isLogger(e ast.Expr) bool {
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	case *ast.CallExpr:
		if method, ok := e.Fun.(*ast.SelectorExpr); ok {
			return method.Sel.Name == "With" && isLogger(method.X) || isLogger(method)
		}
	}
	return strings.Contains(strings.ToLower(name), "log")
}

func logKeyFaults(files []goFile) []string {
	var faults []string
	for _, f := range files {
		for _, key := range f.logKeys {
			faults = append(faults, fmt.Sprintf("%s, %s: keys of log lines are lower case without spaces, and an error's key is err", f.path, key))
		}
	}
	return faults
}
