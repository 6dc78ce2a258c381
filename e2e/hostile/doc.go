// Command hostile plays an agent that an attacker has taken over. It runs as root on an agent's machine, with the
// certificates, the keys and the files of that agent, and tries to harm everything outside its own node: other nodes,
// their pods and secrets, the servers, the API. Each attack has a control, the same call by a client that has the
// right, which has to work; otherwise a refusal proves nothing.
//
// It uses the product only from outside. Harmful calls are dry runs where the API has them.
package main
