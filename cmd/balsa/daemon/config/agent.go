package config

// Agent is the configuration of an agent: a machine that runs pods and is no server.
type Agent struct {
	Node

	Replace      bool // takes the name of a node that is gone for good
	LocalAPIPort int  // on 127.0.0.1, for programs of this machine; 0: none
}

// DefaultAgent returns the configuration of an agent without any flag.
func DefaultAgent() Agent { return Agent{Node: DefaultNode(), LocalAPIPort: 6444} }
