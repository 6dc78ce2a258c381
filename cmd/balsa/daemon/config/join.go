package config

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// JoinToken returns the join token: the flag's value, or the content of the file that
// keeps the token out of the list of processes.
func (c *Node) JoinToken() (string, error) {
	switch {
	case c.Token == "" && c.TokenFile == "":
		return "", errors.New("--join needs --token or --token-file: `balsa token create` on a server makes one")
	case c.TokenFile == "":
		return c.Token, nil
	case c.Token != "":
		return "", errors.New("give --token or --token-file, not both")
	}
	raw, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return "", fmt.Errorf("cannot read the join token: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}
