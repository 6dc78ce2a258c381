package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"
)

// loadFile reads the file given with --config, if any, into the flags that were not given on the command line.
func loadFile(cmd *cobra.Command, path string) error {
	if path == "" {
		return nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("cannot read the configuration: %w", err)
	}
	var values map[string]any
	if err := yaml.UnmarshalStrict(raw, &values); err != nil {
		return fmt.Errorf("configuration %s is not valid YAML: %s", path, strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
	}
	for name, value := range values {
		flag := cmd.Flags().Lookup(name)
		if flag == nil || name == "config" {
			return fmt.Errorf("configuration %s: unknown setting %q; the settings are the flags of `balsa %s --help`", path, name, cmd.Name())
		}
		if flag.Changed {
			continue
		}
		if err := flag.Value.Set(flagText(value)); err != nil {
			return fmt.Errorf("configuration %s: %s: %w", path, name, err)
		}
	}
	return nil
}

// flagText returns a YAML value in the form in which the flag is given on the command line.
func flagText(value any) string {
	switch v := value.(type) {
	case []any:
		parts := make([]string, len(v))
		for i := range v {
			parts[i] = fmt.Sprint(v[i])
		}
		return strings.Join(parts, ",")
	case map[string]any:
		parts := make([]string, 0, len(v))
		for key, val := range v {
			parts = append(parts, fmt.Sprintf("%s=%v", key, val))
		}
		return strings.Join(parts, ",")
	}
	return fmt.Sprint(value)
}
